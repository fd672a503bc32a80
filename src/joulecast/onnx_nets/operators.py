"""Read ONNX calls as operators of ``operators``, and count what they compute and move.

A reader takes a call and returns a stand-alone operator, or None for a view that no kind describes.
Operators without a reader are named in a network's totals, and count as one pass over what they
read and return. The counts at the end do not use the formulas of ``operators``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from joulecast.onnx_nets.graph import (
    FUSED,
    MICROSOFT,
    RECURRENT,
    VIEWS,
    GraphCall,
    list_permutation,
    list_reduced_axes,
    normalise_axis,
    transpose_factors,
)
from joulecast.onnx_nets.model_file import GraphError
from joulecast.operators import Shape, find_kind, make_op
from joulecast.records import Op
from joulecast.system.errors import InputError

ITEM_BYTES = 4
"""All elements count as four bytes, as in the counts of modules."""
SLICING = ("Slice", "Split")
"""Views of some elements, whose gradients are padded with zeros or concatenated."""

_PACKED = f"{FUSED}packed_attention"
_PRODUCTS = ("MatMul", "Gemm", f"{FUSED}linear", f"{MICROSOFT}FusedMatMul")


def read_call(call: GraphCall) -> Op | None:
    """Return the operator that a call runs; None for a view that no kind describes.

    An operator without a reader is one pass over what it reads and returns.
    """
    reader = _READERS.get(call.op)
    return reader(call) if reader else _make_elementwise(call, call.op)


def has_reader(op: str) -> bool:
    """Return whether the cost of an operator is known."""
    return op in _READERS


# -- contractions --------------------------------------------------------------------------------


def _read_conv(call: GraphCall) -> Op:
    image, weight = call.shape(0), call.shape(1)
    groups, kernel, space = call.attribute("group", 1), weight[2:], image[2:]
    kind = f"conv{len(kernel)}d"
    sizes = {
        "cin": weight[1] * groups, "cout": weight[0], "kernel": kernel, "groups": groups,
        "stride": _list_spatial(call, "strides", len(kernel)),
        "dilation": _list_spatial(call, "dilations", len(kernel)),
        "bias": int(call.get(2) is not None),
    }  # fmt: skip
    before, after = _find_padding(call, space, kernel)
    padding: Shape | None = before
    if before != after:
        # Padding that is equal on both sides and gives the same result.
        wanted = (weight[0], *call.outputs[0].dims[2:])
        shape = (sizes["cin"], *space)
        options = {one: make_op(kind, padding=one, space=space, **sizes) for one in (before, after)}
        fitting = (one for one, op in options.items() if find_out_shape(op, shape) == wanted)
        padding = next(fitting, None)
    if padding is None:
        # The input counts as padded before.
        padding = (0,) * len(space)
        space = tuple(map(sum, zip(space, before, after, strict=True)))
    return make_op(kind, padding=padding, space=_stack_images(call, (*image[:2], *space)), **sizes)


def _read_conv_transpose(call: GraphCall) -> Op:
    image, weight = call.shape(0), call.shape(1)
    groups, axes = call.attribute("group", 1), len(weight) - 2
    stride = _list_spatial(call, "strides", axes)
    dilation = _list_spatial(call, "dilations", axes)
    out = call.outputs[0].dims[2:]
    padding, extra = [], []
    for i in range(axes):
        full = (image[2 + i] - 1) * stride[i] + dilation[i] * (weight[2 + i] - 1) + 1
        # What is cut on both sides, and what is added to the end.
        padding.append(max(0, -(-(full - out[i]) // 2)))
        extra.append(out[i] - full + 2 * padding[i])
    return make_op(
        f"conv_transpose{axes}d", cin=weight[0], cout=weight[1] * groups, kernel=weight[2:],
        space=_stack_images(call, image), stride=stride, dilation=dilation,
        padding=tuple(padding), output_padding=tuple(extra), groups=groups,
        bias=int(call.get(2) is not None),
    )  # fmt: skip


def _stack_images(call: GraphCall, shape: Shape) -> Shape:
    """Return the spatial sizes; images of a sample, such as frames, are one tall image."""
    images, _, first, *rest = shape
    return (first * (images // call.batch if images % call.batch == 0 else 1), *rest)


def _read_matmul(call: GraphCall) -> Op:
    """Read a product: linear with one weight, ``grouped_linear`` with several, else ``matmul``."""
    batch, out = call.batch, call.outputs[0]
    left, right = call.read(0), call.read(1)
    a, b = transpose_factors(call)
    if right.is_constant and len(b) == 2:
        return _make_linear(call, *b)
    if left.is_constant and len(a) == 2:
        columns = max(1, round(right.elements / a[1] / batch))
        return make_op("linear", cin=a[1], cout=a[0], lead=(columns,), bias=0)
    if right.is_constant and len(b) == 3:
        experts, cin, cout = b
        rows = max(1, round(out.elements / cout / batch))
        return make_op("grouped_linear", cin=cin, cout=cout, lead=(rows,), experts=experts)
    if len(a) < 2 or len(b) < 2:
        raise GraphError("multiplies a vector, which is not supported")
    m, k, n = a[-2], a[-1], b[-1]
    count = out.elements // max(1, m * n)
    if count % batch == 0:
        return make_op("matmul", count=max(1, count // batch), m=m, k=k, n=n)
    return make_op("matmul", count=1, m=max(1, round(count * m / batch)), k=k, n=n)


def _make_linear(call: GraphCall, cin: int, cout: int) -> Op:
    value, bias = call.read(0), int(call.get(2) is not None)
    sample = value.take_sample(call.batch)
    if not sample or sample[-1] != cin:
        return _make_linear_rows(call, cin, cout, value.elements / max(1, cin), bias)
    return make_op("linear", cin=cin, cout=cout, lead=sample[:-1], bias=bias)


def _make_linear_rows(call: GraphCall, cin: int, cout: int, rows: float, bias: int = 0) -> Op:
    """Return a linear layer on rows that are spread over the samples."""
    rows = round(rows / call.batch)
    return make_op("linear", cin=cin, cout=cout, lead=(rows,) if rows > 1 else (), bias=bias)


def _read_einsum(call: GraphCall) -> Op | None:
    """Read an ``Einsum`` of two values as a product; None for any other."""
    sizes, terms, right = _parse_einsum(call)
    if len(terms) != 2:
        return None
    both = {*terms[0]} & {*terms[1]}
    inner = math.prod(sizes[letter] for letter in both - {*right})
    second = call.read(1)
    if second.is_constant:
        cout = max(1, second.elements // max(1, inner))
        return _make_linear_rows(call, inner, cout, call.outputs[0].elements / cout)
    shared = math.prod(sizes[letter] for letter in both & {*right})
    rows, columns = (
        max(1, one.elements // max(1, inner * shared)) for one in (call.read(0), second)
    )
    count = max(1, round(shared / call.batch))
    return make_op("matmul", count=count, m=rows, k=max(1, inner), n=columns)


def _parse_einsum(call: GraphCall) -> tuple[dict[str, int], list[str], str]:
    """Return the sizes of the letters of an ``Einsum``, the terms of its inputs, and its result."""
    left, _, right = call.attribute("equation", "").replace(" ", "").partition("->")
    terms, sizes = left.split(","), dict[str, int]()
    for place, term in enumerate(terms):
        shape = call.shape(place)
        # Axes under an ellipsis are counted from the back.
        missing = len(shape) - len(term.replace("...", ""))
        terms[place] = term = term.replace("...", "9876543210"[10 - missing :])
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return sizes, terms, right.replace("...", "9876543210")


def _read_recurrent(call: GraphCall) -> Op:
    """Read one layer of an LSTM, a GRU or an RNN."""
    first, second, cin = call.shape(0)
    hidden = call.attribute("hidden_size") or call.shape(2)[-1]
    tokens = second if call.attribute("layout", 0) else first
    return make_op(
        call.op.lower(), cin=cin, hidden=hidden, tokens=tokens,
        bidirectional=int(call.shape(1)[0] == 2), bias=int(call.get(3) is not None),
    )  # fmt: skip


def _read_attention(call: GraphCall) -> Op:
    """Read attention that is one operator, perhaps on queries, keys and values side by side."""
    query = call.shape(0)
    key = query if call.op == _PACKED else call.shape(1)
    heads = call.attribute("q_num_heads") or call.attribute("num_heads") or query[1]
    width = query[-1] // 3 if call.op == _PACKED else query[-1]
    kv_heads = call.attribute("kv_num_heads") or (key[1] if len(key) == 4 else heads)
    is_causal = bool(call.attribute("is_causal", call.attribute("unidirectional", 0)))
    return make_op(
        "sdpa", heads=heads, kv_heads=kv_heads, tokens=query[-2], kv_tokens=key[-2],
        head_dim=width if len(query) == 4 else width // heads, causal=int(is_causal),
    )  # fmt: skip


def _read_spelled_attention(call: GraphCall) -> Op:
    """Read attention that was spelled out: queries, transposed keys, values."""
    query, key = call.shape(0), call.shape(1)
    sequences = math.prod(query[:-3]) if len(query) > 3 else query[0]
    windows = sequences // call.batch if sequences % call.batch == 0 else 1
    heads, kv_heads = (one[-3] if len(one) > 3 else 1 for one in (query, key))
    return make_op(
        "sdpa", **({"windows": windows} if windows > 1 else {}), heads=heads, kv_heads=kv_heads,
        head_dim=query[-1], tokens=query[-2], kv_tokens=key[-1],
        causal=call.attribute("causal", 0),
    )  # fmt: skip


def _list_spatial(call: GraphCall, name: str, axes: int) -> Shape:
    """Return strides or dilations, one for each spatial axis."""
    found = tuple(call.attribute(name, (1,) * axes))
    if len(found) != axes or min(found, default=1) < 1:
        raise GraphError(f"has {name} {list(found)} for {axes} spatial axes")
    return found


def _find_padding(call: GraphCall, space: Shape, kernel: Shape) -> tuple[Shape, Shape]:
    """Return the padding before and after each spatial axis, whatever way it is given."""
    axes = len(space)
    mode = call.attribute("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        strides = _list_spatial(call, "strides", axes)
        dilations = _list_spatial(call, "dilations", axes)
        totals = [
            max(0, (-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size)
            for size, stride, dilation, k in zip(space, strides, dilations, kernel, strict=True)
        ]
        small = tuple(total // 2 for total in totals)
        large = tuple(total - total // 2 for total in totals)
        return (small, large) if mode == "SAME_UPPER" else (large, small)
    none = (0,) * (2 * axes)
    pads = none if mode == "VALID" else tuple(call.attribute("pads", none))
    if len(pads) != 2 * axes:
        raise GraphError(f"has pads {list(pads)} for {axes} spatial axes")
    return pads[:axes], pads[axes:]


# -- functions of elements -----------------------------------------------------------------------

_FUNCTIONS = {
    # PyTorch has them under the same name.
    **{
        op: op.lower()
        for op in (
            "Relu", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "HardSwish", "HardSigmoid",
            "Softplus", "Softsign", "Softmax", "Mish", "Gelu", "Erf", "Exp", "Log", "Sqrt",
            "Reciprocal", "Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Tan",
            "IsNaN", "IsInf", "Add", "Sub", "Mul", "Div", "Pow", "Where", "PRelu", "CumSum",
            "Pad", "ArgMax", "ArgMin",
        )
    },
    **{
        f"{FUSED}{fn}": fn
        for fn in (
            "gelu", "silu", "hardswish", "hardsigmoid", "mish", "quickgeluactivation", "copy"
        )
    },
    "LeakyRelu": "leaky_relu", "LogSoftmax": "log_softmax", "Swish": "silu", "Not": "logical_not",
    "Mod": "remainder", "Min": "minimum", "Max": "maximum", "Sum": "add", "Mean": "mean of inputs",
    "And": "logical_and", "Or": "logical_or", "Equal": "eq", "Less": "lt", "Greater": "gt",
    "LessOrEqual": "le", "GreaterOrEqual": "ge", "Trilu": "tril", "Cast": "to", "Tile": "repeat",
    "DepthToSpace": "pixel_shuffle", "SpaceToDepth": "pixel_unshuffle", "Shrink": "softshrink",
    "ThresholdedRelu": "threshold", "LRN": "local_response_norm", "LpNormalization": "normalize",
    "OneHot": "one_hot", "RotaryEmbedding": "rotary", "GridSample": "grid_sample",
    f"{MICROSOFT}QuickGelu": "quickgeluactivation", "Hardmax": "argmax", "ReduceSum": "sum",
    "ReduceMax": "amax", "ReduceMin": "amin", "ReduceProd": "prod", "ReduceL1": "norm",
    "ReduceL2": "norm", "ReduceLogSum": "logsumexp", "ReduceLogSumExp": "logsumexp",
    "ReduceSumSquare": "sum",
}  # fmt: skip
# Their results have the shape that all inputs are broadcast to.
_COMBINING = ("add", "sub", "mul", "div", "where", "concat", "minimum", "maximum", "pow")
_CLIPS: dict[tuple[float | None, float | None], str] = {
    (0, 6): "relu6", (-1, 1): "hardtanh", (0, None): "relu"
}  # fmt: skip
_INTERPOLATIONS = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _make_elementwise(call: GraphCall, fn: str) -> Op:
    out = call.result
    inputs = [value for value in call.inputs if value is not None and not value.is_constant]
    shape = inputs[0].take_sample(call.batch) if inputs and not fn.startswith(_COMBINING) else out
    sizes: dict[str, Any] = {"fn": fn, "shape": shape}
    if math.prod(out) != math.prod(shape):
        sizes["out"] = out
    if fn == "quickgeluactivation":
        sizes["passes"] = 3
    return make_op("elementwise", **sizes)


def _read_concat(call: GraphCall) -> Op:
    """Read ``Concat``, with its axis unless that holds the channels."""
    axis = normalise_axis(call.attribute("axis", 0), len(call.outputs[0].dims))
    return _make_elementwise(call, "concat" if axis == 1 else f"concat along {axis}")


def _read_clip(call: GraphCall) -> Op:
    """Read ``Clip``: ReLU6 and other activations are certain limits."""

    def find_limit(index: int, name: str) -> float | None:
        value, found = call.get(index), call.attribute(name)
        if value is not None:
            found = value.numbers[0] if value.numbers else None
        # Old versions write the largest number where there is no limit.
        elif found is not None and abs(found) > 1e30:
            found = None
        return None if found is None else float(found)

    limits = find_limit(1, "min"), find_limit(2, "max")
    return _make_elementwise(call, _CLIPS.get(limits, "clamp"))


def _read_resize(call: GraphCall) -> Op:
    mode = call.attribute("mode", "nearest")
    if mode == "linear":
        mode = _INTERPOLATIONS.get(len(call.shape(0)) - 2, mode)
    return _make_elementwise(call, f"interpolate {'bicubic' if mode == 'cubic' else mode}")


def _read_mean(call: GraphCall) -> Op:
    """Read ``ReduceMean``: over axes of a sample, or elementwise with a smaller output."""
    value = call.read(0)
    axes = list_reduced_axes(call)
    is_plain = value.has_batch(call.batch) and value.batch_axis not in axes and axes
    if not is_plain or call.attribute("keepdims", 1):
        return _make_elementwise(call, "mean")
    inner = tuple(axis - int(axis > value.batch_axis) for axis in axes)
    return make_op("elementwise", fn="mean", axes=inner, shape=call.sample(0))


# -- norms, pooling, and elements by index -------------------------------------------------------


def _read_layer_norm(call: GraphCall) -> Op:
    rank = len(call.shape(0))
    dims = rank - normalise_axis(call.attribute("axis", -1), rank)
    bias = int(call.get(2) is not None)
    return make_op("layer_norm", dims=dims, affine=1, bias=bias, shape=call.sample(0))


def _read_group_norm(call: GraphCall) -> Op:
    """Read a group norm; an instance norm has one channel in each group."""
    groups = call.attribute("num_groups", call.shape(0)[1])
    return make_op("group_norm", groups=groups, affine=1, shape=call.sample(0))


def _read_rms_norm(call: GraphCall) -> Op:
    spelled = {"spelled": 1} if call.op.startswith(FUSED) else {}
    return make_op("rms_norm", affine=1, **spelled, shape=call.sample(0))


def _read_pool(call: GraphCall) -> Op:
    """Read pooling by windows; where padding is not the same on both sides, as elementwise."""
    shape, kernel = call.sample(0), tuple(call.attribute("kernel_shape"))
    fn = "max" if call.op == "MaxPool" else "avg"
    strides = _list_spatial(call, "strides", len(kernel))
    out = call.result
    sizes = {"fn": fn, "kernel": kernel, "stride": strides, "shape": shape}
    for padding in _find_padding(call, call.shape(0)[2:], kernel):
        for ceil in (int(call.attribute("ceil_mode", 0)), 1):
            op = make_op("pool", padding=padding, ceil=ceil, **sizes)
            if max(padding, default=0) <= min(kernel) // 2 and find_out_shape(op, shape) == out:
                return op
    return make_op("elementwise", fn=f"{fn}_pool", out=out, shape=shape)


def find_out_shape(op: Op, shape: Shape | None) -> Shape | None:
    """Return the shape of a result; None if the operator does not fit to its input."""
    try:
        return None if shape is None else find_kind(op.kind).out_shape(op.sizes, shape)
    except (InputError, IndexError):
        return None


def _read_global_pool(call: GraphCall) -> Op:
    shape = call.sample(0)
    fn = "adaptive_max" if "Max" in call.op else "adaptive_avg"
    return make_op("pool", fn=fn, kernel=(1,) * (len(shape) - 1), shape=shape)


def _read_dropout(call: GraphCall) -> Op:
    """Read a dropout that is on, as in a net that was exported for training."""
    ratio = call.numbers(1, "ratio") if call.get(1) else (call.attribute("ratio", 0.5),)
    p = float((ratio or (0.5,))[0])
    return make_op("dropout", p=round(p, 6), shape=call.sample(0))


def _read_view(call: GraphCall) -> Op | None:
    """Read ``Reshape`` and the like of a sample; None where the axis of the samples changes."""
    value, out = call.read(0), call.outputs[0]
    if not (value.has_batch(call.batch) and out.has_batch(call.batch)):
        return None
    old, new = call.sample(0), call.result
    if len(new) == 1 and len(old) > 1:
        return make_op("flatten", shape=old)
    return make_op("view", out=new, shape=old)


def _read_permute(call: GraphCall) -> Op | None:
    """Read ``Transpose`` of the axes of a sample; None if it has no axis for the samples."""
    value = call.read(0)
    if not value.has_batch(call.batch):
        return None
    axis = value.batch_axis
    order = [one - int(one > axis) for one in list_permutation(call) if one != axis]
    return make_op("permute", order=tuple(order), shape=call.sample(0))


def _read_gather(call: GraphCall) -> Op | None:
    """Read a ``Gather``: an embedding, the last token, a view of one element, or an index."""
    value, indices = call.read(0), call.read(1)
    axis = normalise_axis(call.attribute("axis", 0), len(value.dims))
    if value.is_constant and axis == 0 and len(value.dims) > 1:
        width, lead = math.prod(value.dims[1:]), call.sample(1)
        return make_op("embedding", vocabulary=value.dims[0], width=width, lead=lead)
    shape, has_batch = call.sample(0), value.has_batch(call.batch)
    if indices.is_constant and indices.elements == 1:
        number = (indices.numbers or (0,))[0]
        is_last = number in (-1, value.dims[axis] - 1) and not indices.dims
        is_first_axis = axis == (1 if value.batch_axis == 0 else 0)
        return make_op("last", shape=shape) if is_last and has_batch and is_first_axis else None
    inner = axis - int(value.batch_axis < axis) if has_batch else 0
    is_across = inner < 0 or axis == value.batch_axis
    where = {"axes": (0,), "across": 1} if is_across else {"axes": (inner,)}
    return make_op("index", fn="index", out=(call.result or (1,)), shape=shape, **where)


def _read_scatter(call: GraphCall) -> Op:
    """Read an assignment of elements by index."""
    source, shape = call.sample(2) or (1,), call.sample(0) or (1,)
    return make_op("scatter", fn="scatter", source=source, copies=1, shape=shape)


def _move(kind: str, fn: str) -> Callable[[GraphCall], Op]:
    return lambda call: make_op(kind, fn=fn, out=(call.result or (1,)), shape=call.sample(0))


_Reader = Callable[[GraphCall], Op | None]
_READERS: dict[str, _Reader] = {
    **dict.fromkeys(
        _FUNCTIONS, lambda call: _make_elementwise(call, _FUNCTIONS[call.op])
    ),
    "Conv": _read_conv, "ConvTranspose": _read_conv_transpose,
    **dict.fromkeys(_PRODUCTS, _read_matmul),
    "Einsum": _read_einsum, **dict.fromkeys(RECURRENT, _read_recurrent),
    f"{FUSED}sdpa": _read_spelled_attention, "Attention": _read_attention, _PACKED: _read_attention,
    f"{MICROSOFT}MultiHeadAttention": _read_attention, "Gather": _read_gather,
    "GatherElements": _move("index", "gather"), "GatherND": _move("index", "gather"),
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), _read_scatter),
    "TopK": _move("sort", "topk"),
    "BatchNormalization": lambda call: make_op(
        "batch_norm", affine=1, shape=call.sample(0)
    ),
    "LayerNormalization": _read_layer_norm, f"{FUSED}layer_norm": _read_layer_norm,
    "GroupNormalization": _read_group_norm, "InstanceNormalization": _read_group_norm,
    f"{FUSED}group_norm": _read_group_norm, "RMSNormalization": _read_rms_norm,
    f"{FUSED}rms_norm": _read_rms_norm, "MaxPool": _read_pool, "AveragePool": _read_pool,
    "GlobalAveragePool": _read_global_pool, "GlobalMaxPool": _read_global_pool,
    "ReduceMean": _read_mean, "Clip": _read_clip, "Concat": _read_concat, "Resize": _read_resize,
    "Upsample": _read_resize, "Dropout": _read_dropout, **dict.fromkeys(VIEWS, _read_view),
    "Transpose": _read_permute,
    **dict.fromkeys((*SLICING, "Identity", "Expand"), lambda call: None),
}  # fmt: skip


# -- counts --------------------------------------------------------------------------------------


def list_weights(call: GraphCall) -> list[str]:
    """Return the names of the weights that a call reads; the statistics of a norm are none."""
    given = call.inputs[1:3] if call.op == "BatchNormalization" else call.inputs
    values = [value for value in given if value is not None and not value.is_scale]
    return [*dict.fromkeys(name for value in values for name in value.weights)]


def count_bytes(call: GraphCall, share: float = 1.0) -> float:
    """Return the bytes that a call reads and writes in forward, for a share of the batch."""
    if call.op in (*VIEWS, *SLICING, "Transpose", "Expand"):
        # Their results describe the same memory.
        return 0.0
    if call.op == "Gather":
        # Of a table, only the rows that are asked for are read; indices have eight bytes.
        rows = call.outputs[0].elements
        return ITEM_BYTES * share * (2.0 * rows + 2.0 * call.read(1).elements)
    tensors = [value for value in (*call.inputs, *call.outputs) if value is not None]
    return ITEM_BYTES * sum(
        value.elements * (1.0 if value.is_constant else share) for value in tensors
    )


def count_flops(call: GraphCall) -> float:
    """Return the FLOPs of the forward pass of a call: two per multiply-add of contractions."""
    rule = _FLOPS.get(call.op)
    is_sized = all(one is None or one.shape is not None for one in (*call.inputs, *call.outputs))
    return 2.0 * rule(call) if rule is not None and is_sized else 0.0


def _multiply(call: GraphCall) -> float:
    left, right = call.shape(0), call.shape(1)
    # Every element of the result sums over the last axis of the left matrix.
    inner = left[-2 if call.attribute("transA", 0) else -1] if left and right else 0
    return call.outputs[0].elements * inner


def _attend(call: GraphCall) -> float:
    """Return the multiply-adds of queries and keys, and of the result and values."""
    if len(call.inputs) < 3 or call.get(1) is None:
        return 0.0
    return (call.read(0).elements + call.outputs[0].elements) * call.shape(1)[-2]


def _contract(call: GraphCall) -> float:
    sizes, terms, _ = _parse_einsum(call)
    return math.prod(sizes.values()) if len(terms) == 2 else 0.0


# Multiply-adds of contractions.
_FLOPS: dict[str, Callable[[GraphCall], float]] = {
    "Conv": lambda call: call.outputs[0].elements * math.prod(call.shape(1)[1:]),
    "ConvTranspose": lambda call: call.read(0).elements * math.prod(call.shape(1)[1:]),
    **dict.fromkeys(_PRODUCTS, _multiply),
    **dict.fromkeys(
        RECURRENT,
        lambda call: math.prod(call.shape(0)[:2]) * (call.read(1).elements + call.read(2).elements),
    ),
    **dict.fromkeys(("Attention", f"{MICROSOFT}MultiHeadAttention"), _attend),
    f"{FUSED}sdpa": lambda call: (
        call.shape(1)[-1] * (call.read(0).elements + call.outputs[0].elements)
    ),
    _PACKED: lambda call: 2.0 * call.outputs[0].elements * call.outputs[0].dims[-2],
    "Einsum": _contract,
}
