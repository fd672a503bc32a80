"""Read ONNX calls as operators of ``kinds``, and count what they compute and move.

A reader takes a call and the batch size and returns a stand-alone operator, or None for a view that
no kind describes. Operators without a reader are named in a network's totals, and count as one pass
over what they read and return. The counts at the end do not use the formulas of ``kinds``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from joulecast.onnx_nets.graph import (
    MICROSOFT,
    RECURRENT,
    VIEWS,
    GraphCall,
    GraphValue,
    find_hidden_size,
    list_permutation,
    list_reduced_axes,
    normalise_axis,
    transpose_factors,
)
from joulecast.onnx_nets.model_file import GraphError
from joulecast.operators import Shape, find_kind, make_op
from joulecast.records import Op
from joulecast.system.errors import InputError

FUSED = "joulecast::"
"""Domain of calls that stand for what a file spells out (``patterns``)."""

ITEM_BYTES = 4
"""All elements count as four bytes, as in the counts of modules."""
SLICING = ("Slice", "Split")
"""Views of some elements, whose gradients are padded with zeros or concatenated."""

# Products with a weight, and the place of their bias.
_BIASED_PRODUCTS = {
    f"{FUSED}linear": 2, f"{MICROSOFT}DynamicQuantizeMatMul": 4,
    f"{MICROSOFT}MatMulIntegerToFloat": 6, f"{MICROSOFT}MatMulNBits": 5,
}  # fmt: skip
_PACKED = f"{FUSED}packed_attention"
_GROUP_NORMS = ("GroupNormalization", "InstanceNormalization", f"{FUSED}group_norm")
_RMS_NORMS = (
    "RMSNormalization", "SimplifiedLayerNormalization",
    f"{MICROSOFT}SimplifiedLayerNormalization", f"{FUSED}rms_norm",
)  # fmt: skip
_GLOBAL_POOLS = (
    "GlobalAveragePool", "GlobalMaxPool", f"{MICROSOFT}QLinearGlobalAveragePool"
)  # fmt: skip


def read_call(call: GraphCall, batch: int) -> Op | None:
    """Return the operator that a call runs; None for a view that no kind describes.

    An operator without a reader is one pass over what it reads and returns.
    """
    reader = _READERS.get(call.op)
    return reader(call, batch) if reader else _make_elementwise(call, call.op, batch)


def has_reader(op: str) -> bool:
    """Return whether the cost of an operator is known."""
    return op in _READERS


def _read_conv(call: GraphCall, batch: int) -> Op:
    """Read a convolution, also of quantised numbers."""
    place = 3 if call.op == "QLinearConv" else 1
    image, weight = call.shape(0), call.shape(place)
    bias = call.get(8 if place == 3 else 2) if call.op != "ConvInteger" else None
    groups = call.attribute("group", 1)
    space, kernel = image[2:], weight[2:]
    padding, space = _make_symmetric(call, space, kernel)
    return make_op(
        f"conv{len(kernel)}d",
        cin=weight[1] * groups,
        cout=weight[0],
        space=_stack_images(space, image[0], batch),
        kernel=kernel,
        stride=_list_spatial(call, "strides", len(kernel)),
        padding=padding,
        dilation=_list_spatial(call, "dilations", len(kernel)),
        groups=groups,
        bias=int(bias is not None),
    )


def _read_conv_transpose(call: GraphCall, batch: int) -> Op:
    """Read a transposed convolution."""
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
        f"conv_transpose{axes}d",
        cin=weight[0],
        cout=weight[1] * groups,
        space=_stack_images(image[2:], image[0], batch),
        kernel=weight[2:],
        stride=stride,
        padding=tuple(padding),
        dilation=dilation,
        groups=groups,
        bias=int(call.get(2) is not None),
        output_padding=tuple(extra),
    )


def _read_gemm(call: GraphCall, batch: int) -> Op:
    """Read ``Gemm``: a linear layer, or a product of two computed matrices."""
    place = 3 if call.op.endswith("QGemm") else 1
    left, right = call.read(0), call.read(place)
    bias = call.get(6 if place == 3 else 2)
    cout, cin = right.dims if call.attribute("transB", 0) else right.dims[::-1]
    if right.is_constant:
        return _make_linear(left, cin, cout, bias is not None, batch)
    return make_op("matmul", count=1, m=max(1, round(left.dims[0] / batch)), k=cin, n=cout)


def _read_matmul(call: GraphCall, batch: int) -> Op:
    """Read ``MatMul``: linear with one weight, ``grouped_linear`` with several, else ``matmul``."""
    place = 3 if call.op == "QLinearMatMul" else 1
    left, right = call.read(0), call.read(place)
    if right.is_constant and len(right.dims) == 2:
        return _make_linear(left, *right.dims, False, batch)
    if left.is_constant and len(left.dims) == 2:
        columns = max(1, round(right.elements / left.dims[1] / batch))
        return make_op("linear", cin=left.dims[1], cout=left.dims[0], lead=(columns,), bias=0)
    if right.is_constant and len(right.dims) == 3:
        experts, cin, cout = right.dims
        rows = max(1, round(call.outputs[0].elements / cout / batch))
        return make_op("grouped_linear", cin=cin, cout=cout, lead=(rows,), experts=experts)
    return _read_product(left.dims, right.dims, call.outputs[0], batch)


def _read_fused_matmul(call: GraphCall, batch: int) -> Op:
    """Read ONNX Runtime's product of matrices that are transposed on the way."""
    a, b = transpose_factors(call)
    if call.read(1).is_constant and len(b) == 2:
        return _make_linear(call.read(0), *b, False, batch)
    return _read_product(a, b, call.outputs[0], batch)


def _read_biased_matmul(call: GraphCall, batch: int) -> Op:
    """Read a product with a weight that is one operator with its bias, perhaps quantised."""
    bias = call.get(_BIASED_PRODUCTS[call.op])
    cin, cout = call.attribute("K"), call.attribute("N")
    if cin is None:
        cin, cout = call.shape(1)
    return _make_linear(call.read(0), cin, cout, bias is not None, batch)


def _read_einsum(call: GraphCall, batch: int) -> Op | None:
    """Read an ``Einsum`` of two values as a product; None for any other."""
    sizes, terms, right = _parse_einsum(call)
    if len(terms) != 2:
        return None
    both = {*terms[0]} & {*terms[1]}
    inner = math.prod(sizes[letter] for letter in both - {*right})
    second = call.read(1)
    if second.is_constant:
        cout = max(1, second.elements // max(1, inner))
        return _make_linear_rows(inner, cout, call.outputs[0].elements / cout, batch)
    shared = math.prod(sizes[letter] for letter in both & {*right})
    rows, columns = (
        max(1, one.elements // max(1, inner * shared)) for one in (call.read(0), second)
    )
    count = max(1, round(shared / batch))
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


def _read_recurrent(call: GraphCall, batch: int) -> Op:
    """Read one layer of an LSTM, a GRU or an RNN."""
    first, second, cin = call.shape(0)
    bias = call.get(3)
    return make_op(
        "lstm" if call.op.endswith("LSTM") else call.op.lower(),
        cin=cin,
        hidden=find_hidden_size(call),
        tokens=second if call.attribute("layout", 0) else first,
        bidirectional=int(call.shape(1)[0] == 2),
        bias=int(bias is not None),
    )


def _read_sdpa(call: GraphCall, batch: int) -> Op:
    """Read attention that was spelled out: queries, transposed keys, values."""
    query, key = call.shape(0), call.shape(1)
    sequences = math.prod(query[:-3]) if len(query) > 3 else query[0]
    windows = sequences // batch if sequences % batch == 0 else 1
    return make_op(
        "sdpa",
        **({"windows": windows} if windows > 1 else {}),
        heads=query[-3] if len(query) > 3 else 1,
        kv_heads=key[-3] if len(key) > 3 else 1,
        head_dim=query[-1],
        tokens=query[-2],
        kv_tokens=key[-1],
        causal=call.attribute("causal", 0),
    )


def _read_attention(call: GraphCall, batch: int) -> Op:
    """Read attention that is one operator, perhaps on queries, keys and values side by side."""
    query = call.shape(0)
    key = query if call.op == _PACKED else call.shape(1)
    heads = call.attribute("q_num_heads") or call.attribute("num_heads") or query[1]
    width = query[-1] // 3 if call.op == _PACKED else query[-1]
    return make_op(
        "sdpa",
        heads=heads,
        kv_heads=call.attribute("kv_num_heads") or (key[1] if len(key) == 4 else heads),
        head_dim=width if len(query) == 4 else width // heads,
        tokens=query[-2],
        kv_tokens=key[-2],
        causal=int(bool(call.attribute("is_causal", call.attribute("unidirectional", 0)))),
    )


def _make_linear(value: GraphValue, cin: int, cout: int, has_bias: bool, batch: int) -> Op:
    sample = value.take_sample(batch)
    if not sample or sample[-1] != cin:
        return _make_linear_rows(cin, cout, value.elements / max(1, cin), batch, has_bias)
    return make_op("linear", cin=cin, cout=cout, lead=sample[:-1], bias=int(has_bias))


def _make_linear_rows(cin: int, cout: int, rows: float, batch: int, has_bias: bool = False) -> Op:
    """Return a linear layer on rows that are spread over the samples."""
    lead = max(1, round(rows / batch))
    sizes = (lead,) if lead > 1 else ()
    return make_op("linear", cin=cin, cout=cout, lead=sizes, bias=int(has_bias))


def _read_product(left: Shape, right: Shape, out: GraphValue, batch: int) -> Op:
    if len(left) < 2 or len(right) < 2:
        raise GraphError("multiplies a vector, which is not supported")
    m, k, n = left[-2], left[-1], right[-1]
    count = out.elements // max(1, m * n)
    if count % batch == 0:
        return make_op("matmul", count=max(1, count // batch), m=m, k=k, n=n)
    return make_op("matmul", count=1, m=max(1, round(count * m / batch)), k=k, n=n)


def _stack_images(space: Shape, images: int, batch: int) -> Shape:
    """Return the spatial sizes; images of a sample, such as frames, are one tall image."""
    first, *rest = space
    return (first * (images // batch if images % batch == 0 else 1), *rest)


def _make_symmetric(call: GraphCall, space: Shape, kernel: Shape) -> tuple[Shape, Shape]:
    """Return padding that is equal on both sides, and the spatial sizes that it is applied to.

    Where no such padding gives the same result, the input counts as padded before.
    """
    before, after = _find_padding(call, space, kernel)
    if before == after:
        return before, space
    wanted = call.outputs[0].dims[2:]
    stride = _list_spatial(call, "strides", len(kernel))
    dilation = _list_spatial(call, "dilations", len(kernel))
    conv = find_kind(f"conv{len(kernel)}d")
    for padding in (before, after):
        op = make_op(
            f"conv{len(kernel)}d", cin=1, cout=1, space=space, kernel=kernel, stride=stride,
            padding=padding, dilation=dilation,
        )  # fmt: skip
        if conv.out_shape(op.sizes, (1, *space))[1:] == wanted:
            return padding, space
    padded = tuple(sum(sizes) for sizes in zip(space, before, after, strict=True))
    return (0,) * len(space), padded


_FUNCTIONS = {
    "Relu": "relu", "LeakyRelu": "leaky_relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Elu": "elu",
    "Selu": "selu", "Celu": "celu", "HardSwish": "hardswish", "HardSigmoid": "hardsigmoid",
    "Softplus": "softplus", "Softsign": "softsign", "Softmax": "softmax",
    "LogSoftmax": "log_softmax", "Mish": "mish", "Gelu": "gelu", "Swish": "silu", "Erf": "erf",
    "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Abs": "abs",
    "Neg": "neg", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sign": "sign", "Sin": "sin",
    "Cos": "cos", "Tan": "tan", "Not": "logical_not", "IsNaN": "isnan", "IsInf": "isinf",
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Mod": "remainder",
    "Min": "minimum", "Max": "maximum", "Sum": "add", "Mean": "mean of inputs",
    "And": "logical_and", "Or": "logical_or", "Equal": "eq", "Less": "lt", "Greater": "gt",
    "LessOrEqual": "le", "GreaterOrEqual": "ge", "Where": "where", "PRelu": "prelu",
    "CumSum": "cumsum", "Trilu": "tril", "Cast": "to", "Expand": "expand", "Tile": "repeat",
    "Pad": "pad", "DepthToSpace": "pixel_shuffle", "SpaceToDepth": "pixel_unshuffle",
    "ThresholdedRelu": "threshold", "Shrink": "softshrink", "LRN": "local_response_norm",
    "LpNormalization": "normalize", "ArgMax": "argmax", "ArgMin": "argmin", "OneHot": "one_hot",
    "RotaryEmbedding": "rotary", "com.microsoft::RotaryEmbedding": "rotary",
    "com.microsoft::Gelu": "gelu", "com.microsoft::QuickGelu": "quickgeluactivation",
    "com.microsoft::QLinearAdd": "add", "com.microsoft::QLinearMul": "mul",
    "com.microsoft::QLinearSigmoid": "sigmoid", "com.microsoft::QLinearLeakyRelu": "leaky_relu",
    "com.microsoft::QLinearSoftmax": "softmax", "GridSample": "grid_sample",
    "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin", "ReduceProd": "prod",
    "ReduceL1": "norm", "ReduceL2": "norm", "ReduceLogSum": "logsumexp",
    "ReduceLogSumExp": "logsumexp", "ReduceSumSquare": "sum", "Hardmax": "argmax",
}  # fmt: skip
"""Names of functions as PyTorch has them, by ONNX operator."""

# Their results have the shape that all inputs are broadcast to.
_COMBINING = ("add", "sub", "mul", "div", "where", "concat", "minimum", "maximum", "pow")
_CLIPS: dict[tuple[float | None, float | None], str] = {
    (0, 6): "relu6", (-1, 1): "hardtanh", (0, None): "relu"
}  # fmt: skip
_INTERPOLATIONS = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _read_elementwise(call: GraphCall, batch: int) -> Op:
    """Read any function that passes over elements."""
    fn = _FUNCTIONS.get(call.op, call.op.removeprefix(FUSED))
    return _make_elementwise(call, fn, batch)


def _read_concat(call: GraphCall, batch: int) -> Op:
    """Read ``Concat``, with its axis unless that holds the channels."""
    axis = normalise_axis(call.attribute("axis", 0), len(call.outputs[0].dims))
    return _make_elementwise(call, "concat" if axis == 1 else f"concat along {axis}", batch)


def _read_clip(call: GraphCall, batch: int) -> Op:
    """Read ``Clip``: ReLU6 and other activations are certain limits."""
    low, high = _find_limit(call, 1, "min"), _find_limit(call, 2, "max")
    return _make_elementwise(call, _CLIPS.get((low, high), "clamp"), batch)


def _read_resize(call: GraphCall, batch: int) -> Op:
    """Read ``Resize`` and ``Upsample``, with their mode."""
    axes = len(call.shape(0)) - 2
    mode = call.attribute("mode", "nearest")
    if mode == "linear":
        mode = _INTERPOLATIONS.get(axes, mode)
    return _make_elementwise(call, f"interpolate {'bicubic' if mode == 'cubic' else mode}", batch)


def _read_layer_norm(call: GraphCall, batch: int) -> Op:
    """Read a layer norm, spelled out or not."""
    rank = len(call.shape(0))
    dims = rank - normalise_axis(call.attribute("axis", -1), rank)
    bias = int(call.get(2) is not None)
    shape = _find_in(call, batch)
    return make_op("layer_norm", dims=dims, affine=1, bias=bias, shape=shape)


def _read_group_norm(call: GraphCall, batch: int) -> Op:
    """Read a group norm; an instance norm has one channel in each group."""
    groups = call.attribute("num_groups", call.shape(0)[1])
    return make_op("group_norm", groups=groups, affine=1, shape=_find_in(call, batch))


def _read_rms_norm(call: GraphCall, batch: int) -> Op:
    """Read an RMS norm, as one operator or spelled out."""
    spelled = {"spelled": 1} if call.op.startswith(FUSED) else {}
    return make_op("rms_norm", affine=1, **spelled, shape=_find_in(call, batch))


def _read_pool(call: GraphCall, batch: int) -> Op:
    """Read pooling by windows; where padding is not the same on both sides, as elementwise."""
    shape, kernel = _find_in(call, batch), tuple(call.attribute("kernel_shape"))
    fn = "max" if call.op == "MaxPool" else "avg"
    before, after = _find_padding(call, call.shape(0)[2:], kernel)
    strides = _list_spatial(call, "strides", len(kernel))
    out = call.outputs[0].take_sample(batch)
    for padding in (before, after):
        for ceil in (int(call.attribute("ceil_mode", 0)), 1):
            op = make_op(
                "pool", fn=fn, kernel=kernel, stride=strides, padding=padding, ceil=ceil,
                shape=shape,
            )  # fmt: skip
            if max(padding, default=0) <= min(kernel) // 2 and _gives_shape(op, shape, out):
                return op
    return make_op("elementwise", fn=f"{fn}_pool", out=out, shape=shape)


def _read_global_pool(call: GraphCall, batch: int) -> Op:
    """Read pooling over all positions."""
    shape = _find_in(call, batch)
    fn = "adaptive_max" if "Max" in call.op else "adaptive_avg"
    return make_op("pool", fn=fn, kernel=(1,) * (len(shape) - 1), shape=shape)


def _read_mean(call: GraphCall, batch: int) -> Op:
    """Read ``ReduceMean``: over axes of a sample, or elementwise with a smaller output."""
    value = call.read(0)
    axes = list_reduced_axes(call)
    is_plain = value.has_batch(batch) and value.batch_axis not in axes and axes
    if not is_plain or call.attribute("keepdims", 1):
        return _make_elementwise(call, "mean", batch)
    inner = tuple(axis - int(axis > value.batch_axis) for axis in axes)
    return make_op("elementwise", fn="mean", axes=inner, shape=value.take_sample(batch))


def _read_dropout(call: GraphCall, batch: int) -> Op:
    """Read a dropout that is on, as in a net that was exported for training."""
    ratio = call.numbers(1, "ratio") if call.get(1) else (call.attribute("ratio", 0.5),)
    p = float((ratio or (0.5,))[0])
    return make_op("dropout", p=round(p, 6), shape=_find_in(call, batch))


def _read_view(call: GraphCall, batch: int) -> Op | None:
    """Read ``Reshape`` and the like of a sample; None where the axis of the samples changes."""
    value, out = call.read(0), call.outputs[0]
    if not (value.has_batch(batch) and out.has_batch(batch)):
        return None
    old, new = value.take_sample(batch), out.take_sample(batch)
    if len(new) == 1 and len(old) > 1:
        return make_op("flatten", shape=old)
    return make_op("view", out=new, shape=old)


def _read_permute(call: GraphCall, batch: int) -> Op | None:
    """Read ``Transpose`` of the axes of a sample; None if it has no axis for the samples."""
    value = call.read(0)
    if not value.has_batch(batch):
        return None
    axis = value.batch_axis
    order = [one - int(one > axis) for one in list_permutation(call) if one != axis]
    return make_op("permute", order=tuple(order), shape=value.take_sample(batch))


def _read_gather(call: GraphCall, batch: int) -> Op | None:
    """Read a ``Gather``: an embedding, the last token, a view of one element, or an index."""
    value, indices = call.read(0), call.read(1)
    axis = normalise_axis(call.attribute("axis", 0), len(value.dims))
    if value.is_constant and axis == 0 and len(value.dims) > 1:
        width, lead = math.prod(value.dims[1:]), indices.take_sample(batch)
        return make_op("embedding", vocabulary=value.dims[0], width=width, lead=lead)
    shape, has_batch = value.take_sample(batch), value.has_batch(batch)
    if indices.is_constant and indices.elements == 1:
        number = (indices.numbers or (0,))[0]
        is_last = number in (-1, value.dims[axis] - 1) and not indices.dims
        is_first_axis = axis == (1 if value.batch_axis == 0 else 0)
        return make_op("last", shape=shape) if is_last and has_batch and is_first_axis else None
    inner = axis - int(value.batch_axis < axis) if has_batch else 0
    is_across = inner < 0 or axis == value.batch_axis
    where = {"axes": (0,), "across": 1} if is_across else {"axes": (inner,)}
    return make_op("index", fn="index", out=_find_out(call, batch), shape=shape, **where)


def _read_scatter(call: GraphCall, batch: int) -> Op:
    """Read an assignment of elements by index."""
    source, shape = call.read(2).take_sample(batch) or (1,), _find_in(call, batch) or (1,)
    return make_op("scatter", fn="scatter", source=source, copies=1, shape=shape)


def _make_elementwise(call: GraphCall, fn: str, batch: int) -> Op:
    out = call.outputs[0].take_sample(batch)
    inputs = [value for value in call.inputs if value is not None and not value.is_constant]
    shape = inputs[0].take_sample(batch) if inputs else out
    if fn.startswith(_COMBINING):
        shape = out
    sizes: dict[str, Any] = {"fn": fn, "shape": shape}
    if math.prod(out) != math.prod(shape):
        sizes["out"] = out
    if fn == "quickgeluactivation":
        sizes["passes"] = 3
    return make_op("elementwise", **sizes)


def _find_in(call: GraphCall, batch: int) -> Shape:
    return call.read(0).take_sample(batch)


def _find_out(call: GraphCall, batch: int) -> Shape:
    return call.outputs[0].take_sample(batch) or (1,)


def _find_limit(call: GraphCall, index: int, name: str) -> float | None:
    value = call.get(index)
    if value is not None:
        return float(value.numbers[0]) if value.numbers else None
    found = call.attribute(name)
    # Old versions write the largest number where there is no limit.
    return None if found is None or abs(found) > 1e30 else float(found)


def _gives_shape(op: Op, shape: tuple[int, ...], out: tuple[int, ...]) -> bool:
    try:
        return find_kind(op.kind).out_shape(op.sizes, shape) == out
    except InputError:
        return False


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
    if mode == "VALID":
        return (0,) * axes, (0,) * axes
    pads = tuple(call.attribute("pads", (0,) * (2 * axes)))
    if len(pads) != 2 * axes:
        raise GraphError(f"has pads {list(pads)} for {axes} spatial axes")
    return pads[:axes], pads[axes:]


# Inputs that are weights, where others are statistics, scales or zero points.
_WEIGHT_PLACES = {
    "BatchNormalization": (1, 2), "QLinearConv": (3, 8), "QLinearMatMul": (3,),
    "MatMulInteger": (1,), "ConvInteger": (1,), f"{MICROSOFT}QGemm": (3, 6),
    f"{MICROSOFT}DynamicQuantizeLSTM": (1, 2, 3), f"{MICROSOFT}DynamicQuantizeMatMul": (1, 4),
    f"{MICROSOFT}MatMulIntegerToFloat": (1, 6), f"{MICROSOFT}MatMulNBits": (1, 5),
}  # fmt: skip
# Results of these describe the same memory.
_MOVED_NOWHERE = (*VIEWS, *SLICING, "Transpose", "Expand")


def list_weights(call: GraphCall) -> list[GraphValue]:
    """Return the weights that a call reads."""
    if call.op.startswith(f"{MICROSOFT}QLinear"):
        return []
    places = _WEIGHT_PLACES.get(call.op, tuple(range(len(call.inputs))))
    given = (call.get(place) for place in places)
    return [one for one in given if one is not None and one.is_weight and not one.is_scale]


def count_flops(call: GraphCall) -> float:
    """Return the FLOPs of the forward pass of a call: two per multiply-add of contractions."""
    rule = _FLOPS.get(call.op)
    is_sized = all(one is None or one.shape is not None for one in (*call.inputs, *call.outputs))
    return rule(call) if rule is not None and is_sized else 0.0


def count_bytes(call: GraphCall, share: float = 1.0) -> float:
    """Return the bytes that a call reads and writes in the forward pass.

    Args:
        call: The call.
        share: Which share of the samples to count, of those that the graph was read with.
    """
    if call.op in _MOVED_NOWHERE:
        return 0.0
    if call.op == "Gather":
        # Of a table, only the rows that are asked for are read; indices have eight bytes.
        rows = call.outputs[0].elements
        return ITEM_BYTES * share * (2.0 * rows + 2.0 * call.read(1).elements)
    tensors = [value for value in (*call.inputs, *call.outputs) if value is not None]
    return ITEM_BYTES * sum(
        value.elements * (1.0 if value.is_constant else share) for value in tensors
    )


def _multiply(call: GraphCall, place: int = 1) -> float:
    left, right = call.shape(0), call.shape(place)
    if not left or not right:
        return 0.0
    # Every element of the result sums over the last axis of the left matrix.
    inner = left[-2] if call.attribute("transA", 0) else left[-1]
    return 2.0 * call.outputs[0].elements * inner


def _convolve(call: GraphCall, place: int = 1) -> float:
    return 2.0 * call.outputs[0].elements * math.prod(call.shape(place)[1:])


def _recur(call: GraphCall) -> float:
    first, second, _ = call.shape(0)
    return 2.0 * first * second * (call.read(1).elements + call.read(2).elements)


def _attend(call: GraphCall) -> float:
    """Return the FLOPs of queries times keys, and of the result times values."""
    if len(call.inputs) < 3 or call.get(1) is None:
        return 0.0
    query, key = call.shape(0), call.shape(1)
    scored = math.prod(query) * key[-2]
    return 2.0 * scored + 2.0 * call.outputs[0].elements * key[-2]


def _contract(call: GraphCall) -> float:
    sizes, terms, _ = _parse_einsum(call)
    return 2.0 * math.prod(sizes.values()) if len(terms) == 2 else 0.0


_FLOPS: dict[str, Callable[[GraphCall], float]] = {
    **dict.fromkeys(("Conv", "ConvInteger"), _convolve),
    "QLinearConv": lambda call: _convolve(call, 3),
    "ConvTranspose": lambda call: 2.0 * call.read(0).elements * math.prod(call.shape(1)[1:]),
    **dict.fromkeys(
        ("Gemm", "MatMul", "MatMulInteger", f"{MICROSOFT}FusedMatMul", *_BIASED_PRODUCTS), _multiply
    ),
    **dict.fromkeys(("QLinearMatMul", f"{MICROSOFT}QGemm"), lambda call: _multiply(call, 3)),
    **dict.fromkeys(RECURRENT, _recur),
    **dict.fromkeys(("Attention", f"{MICROSOFT}MultiHeadAttention"), _attend),
    f"{FUSED}sdpa": lambda call: (
        2.0 * call.shape(1)[-1] * (call.read(0).elements + call.outputs[0].elements)
    ),
    _PACKED: lambda call: 4.0 * call.outputs[0].elements * call.outputs[0].dims[-2],
    "Einsum": _contract,
}  # fmt: skip

_READERS: dict[str, Callable[[GraphCall, int], Op | None]] = {
    **dict.fromkeys(_FUNCTIONS, _read_elementwise),
    **{
        f"{FUSED}{name}": _read_elementwise
        for name in (
            "gelu", "silu", "hardswish", "hardsigmoid", "mish", "quickgeluactivation", "copy"
        )
    },
    **{
        op: reader
        for ops, reader in (
            (("Conv", "ConvInteger", "QLinearConv"), _read_conv),
            (("ConvTranspose",), _read_conv_transpose),
            (("Gemm", f"{MICROSOFT}QGemm"), _read_gemm),
            (("MatMul", "MatMulInteger", "QLinearMatMul"), _read_matmul),
            ((f"{MICROSOFT}FusedMatMul",), _read_fused_matmul),
            (_BIASED_PRODUCTS, _read_biased_matmul),
            (("Einsum",), _read_einsum),
            (RECURRENT, _read_recurrent),
            ((f"{FUSED}sdpa",), _read_sdpa),
            (("Attention", f"{MICROSOFT}MultiHeadAttention", _PACKED), _read_attention),
            (("Gather",), _read_gather),
            (
                ("GatherElements", "GatherND"),
                lambda call, batch: make_op(
                    "index", fn="gather", out=_find_out(call, batch), shape=_find_in(call, batch)
                ),
            ),
            (("ScatterND", "ScatterElements", "Scatter"), _read_scatter),
            (
                ("TopK",),
                lambda call, batch: make_op(
                    "sort", fn="topk", out=_find_out(call, batch), shape=_find_in(call, batch)
                ),
            ),
            (
                ("BatchNormalization",),
                lambda call, batch: make_op("batch_norm", affine=1, shape=_find_in(call, batch)),
            ),
            (("LayerNormalization", f"{FUSED}layer_norm"), _read_layer_norm),
            (_GROUP_NORMS, _read_group_norm),
            (_RMS_NORMS, _read_rms_norm),
            (("MaxPool", "AveragePool", f"{MICROSOFT}QLinearAveragePool"), _read_pool),
            (_GLOBAL_POOLS, _read_global_pool),
            (("ReduceMean",), _read_mean),
            (("Clip",), _read_clip),
            (("Concat",), _read_concat),
            (("Resize", "Upsample"), _read_resize),
            (("Dropout",), _read_dropout),
            (VIEWS, _read_view),
            (("Transpose",), _read_permute),
            ((*SLICING, "Identity", "Expand"), lambda call, batch: None),
        )
        for op in ops
    },
}  # fmt: skip
