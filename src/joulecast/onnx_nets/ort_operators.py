"""Add the nodes of operators to an ONNX graph: one builder per kind.

Nodes are those that PyTorch's exporter writes, so that ONNX Runtime fuses them as it fuses an
exported file. Operators that move elements by index move arbitrary ones, as many as in the network
that was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from joulecast.onnx_nets.ort_graph import Array, OnnxGraph, Shape, Value
from joulecast.operators import count_operand, find_kind
from joulecast.operators.building import find_operand_shape
from joulecast.records import Op, Sizes
from joulecast.system.errors import NetError

OpBuilder = Callable[[OnnxGraph, Op, Sequence[Value]], Value]
Function = Callable[[OnnxGraph, Value], Value]

_EPSILON = 1e-5
# Those of PyTorch's modules: fused, and spelled out in elementary operators.
_RMS_EPSILONS = (1.1920929e-07, 1e-6)
# ONNX's order of gates, as positions in PyTorch's.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
_LOWEST_SCORE = -1e9


def build_op(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add the nodes of an operator with its weights, and return its result.

    Raises:
        NetError: ONNX has no such operator.
    """
    return OP_BUILDERS[op.kind](graph, op, inputs)


# -- layers with weights, and pooling --------------------------------------------------------


def _build_conv(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    s = op.sizes
    is_transposed = "transpose" in op.kind
    ends = (s["cin"], s["cout"]) if is_transposed else (s["cout"], s["cin"])
    arrays = [graph.weights("weight", (ends[0], ends[1] // s["groups"], *s["kernel"]))]
    if s["bias"]:
        arrays.append(graph.weights("bias", (s["cout"],)))
    return graph.add(
        "ConvTranspose" if is_transposed else "Conv",
        inputs[0],
        *arrays,
        kernel_shape=list(s["kernel"]),
        strides=list(s["stride"]),
        pads=[*s["padding"], *s["padding"]],
        dilations=list(s["dilation"]),
        group=s["groups"],
        **({"output_padding": list(s["output_padding"])} if is_transposed else {}),
    )


def _build_linear(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    x, cin, cout = inputs[0], op.sizes["cin"], op.sizes["cout"]
    weight = graph.weights("weight", (cout, cin))
    bias = graph.weights("bias", (cout,)) if op.sizes["bias"] else None
    if len(x.shape) == 2 and bias is not None:
        return graph.add("Gemm", x, weight, bias, transB=1)
    out = graph.add("MatMul", x, weight.T)
    return out if bias is None else graph.add("Add", bias, out)


def _build_grouped_linear(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add the experts of a mixture, each multiplying an equal share of the rows."""
    s, x = op.sizes, inputs[0]
    experts, cin, cout = s["experts"], s["cin"], s["cout"]
    weight = graph.weights("weight", (experts, cout, cin))
    rows = graph.reshape(x, (math.prod(x.shape[:-1]), cin))
    ends = [rows.shape[0] * one // experts for one in range(experts + 1)]
    products = [
        graph.add("MatMul", graph.slice(rows, 0, begin, end), weight[expert].T)
        for expert, (begin, end) in enumerate(pairwise(ends))
        if end > begin
    ]
    return graph.reshape(graph.add("Concat", *products, axis=0), (*x.shape[:-1], cout))


def _build_matmul(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    second_shape = find_kind(op.kind).second_shape
    assert second_shape is not None
    left = inputs[0]
    right = inputs[1] if len(inputs) > 1 else graph.fit(left, second_shape(op.sizes))
    return graph.add("MatMul", left, right)


def _build_pool(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    s, x = op.sizes, inputs[0]
    out = find_kind(op.kind).out_shape(s, x.sample)
    is_max = s["fn"].endswith("max")
    if s["fn"].startswith("adaptive"):
        if set(out[1:]) == {1}:
            return graph.add("GlobalMaxPool" if is_max else "GlobalAveragePool", x)
        if set(x.sample[1:]) == {1}:
            return graph.add("Expand", x, (graph.batch, *out))
        pairs = [*zip(x.sample[1:], out[1:], strict=True)]
        if any(size % steps for size, steps in pairs):
            raise NetError(
                f"ONNX has no adaptive pooling from {x.sample[1:]} to {out[1:]}: give an input "
                "whose size is a multiple of the output's"
            )
        kernel = stride = [size // steps for size, steps in pairs]
        padding, ceil = [0] * len(kernel), 0
    else:
        kernel, stride, padding = ([*s[name]] for name in ("kernel", "stride", "padding"))
        ceil = s["ceil"]
    windows = {"kernel_shape": kernel, "strides": stride, "pads": padding * 2, "ceil_mode": ceil}
    if is_max:
        return graph.add("MaxPool", x, **windows)
    return graph.add("AveragePool", x, count_include_pad=1, **windows)


# -- norms ---------------------------------------------------------------------------------------


def _build_batch_norm(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    channels = (inputs[0].shape[1],)
    starts = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    arrays = [
        graph.weights(name, channels, start)
        if op.sizes["affine"] or name.startswith("running")
        else _fill(channels, start)
        for name, start in starts.items()
    ]
    return graph.add("BatchNormalization", inputs[0], *arrays, epsilon=_EPSILON)


def _build_layer_norm(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    x, dims, affine = inputs[0], op.sizes["dims"], op.sizes["affine"]
    features = x.shape[len(x.shape) - dims :]
    arrays = [graph.weights("weight", features, 1.0) if affine else _fill(features, 1.0)]
    if affine and op.sizes["bias"]:
        arrays.append(graph.weights("bias", features, 0.0))
    return graph.add("LayerNormalization", x, *arrays, axis=-dims, epsilon=_EPSILON)


def _build_group_norm(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    x, groups = inputs[0], op.sizes["groups"]
    # As exporters write it: groups are the channels of an instance norm.
    rows = graph.reshape(x, (x.shape[0], groups, math.prod(x.sample) // groups))
    ends = [_fill((groups,), start) for start in (1.0, 0.0)]
    out = graph.add("InstanceNormalization", rows, *ends, epsilon=_EPSILON)
    out = graph.reshape(out, x.shape)
    if not op.sizes["affine"]:
        return out
    shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    scale, bias = (
        graph.weights(name, shape[:1], start).reshape(shape)
        for name, start in (("weight", 1.0), ("bias", 0.0))
    )
    return graph.add("Add", graph.add("Mul", out, scale), bias)


def _build_rms_norm(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    x = inputs[0]
    # The spelling that ONNX Runtime fuses to one kernel.
    mean = graph.add("ReduceMean", graph.add("Pow", x, 2.0), [-1], keepdims=1)
    shifted = graph.add("Add", mean, _RMS_EPSILONS[op.sizes.get("spelled", 0)])
    out = graph.add("Div", x, graph.add("Sqrt", shifted))
    if not op.sizes["affine"]:
        return out
    return graph.add("Mul", out, graph.weights("weight", x.shape[-1:], 1.0))


# -- functions of elements -----------------------------------------------------------------------


def _build_function(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add a function; one that ONNX lacks becomes as many passes over the elements."""
    s, x, fn = op.sizes, inputs[0], op.sizes["fn"]
    out = find_kind(op.kind).out_shape(s, x.sample)
    if fn.startswith("concat along"):
        whole = find_kind(op.kind).out_shape(s, tuple(s.get("shape", x.sample)))
        return _concat_flat(graph, inputs, whole)
    if count_operand(s) and s["inputs"] == 1:
        operand = graph.weights("operand", find_operand_shape(count_operand(s), x.sample), 1.0)
        return graph.add(fn.capitalize(), x, operand)
    if fn in JOINS and len(inputs) > 1:
        return JOINS[fn](graph, inputs)
    if fn == "mean" and s["axes"]:
        return _reduce_axes(graph, "ReduceMean", x, s["axes"])
    if fn in REDUCTIONS and (found := _reduce_to(graph, REDUCTIONS[fn], x, out)):
        return found
    if fn in FUNCTIONS and out == x.sample and len(inputs) == 1:
        return FUNCTIONS[fn](graph, x)
    if fn in _RESIZES and len(out) == len(x.sample) and out[0] == x.sample[0]:
        mode = _RESIZES[fn]
        more = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        more = more if mode == "nearest" else {}
        sizes = (x.shape[0], *out)
        return graph.add("Resize", x, None, None, sizes, mode=mode, cubic_coeff_a=-0.75, **more)
    if fn == "repeat_interleave" and (found := _repeat(graph, x, out)):
        return found
    # The traffic of a function that ONNX lacks, not its values.
    x = _join(graph, "Add", inputs)
    for _ in range(s["passes"] - (len(inputs) > 1)):
        x = graph.add("Mul", x, 0.5)
    return graph.fit(x, out)


def _join(graph: OnnxGraph, op_type: str, inputs: Sequence[Value]) -> Value:
    """Add a sum or product of inputs, which may be broadcast."""
    x = inputs[0]
    for other in inputs[1:]:
        x = graph.add(op_type, x, other)
    return x


JOINS: dict[str, Callable[[OnnxGraph, Sequence[Value]], Value]] = {
    "add": lambda graph, inputs: _join(graph, "Add", inputs),
    "mul": lambda graph, inputs: _join(graph, "Mul", inputs),
    "concat": lambda graph, inputs: graph.add("Concat", *inputs, axis=1),
}
"""What puts the inputs of a layer together."""


def _apply(*op_types: str, **attributes: float) -> Function:
    """Return what applies operators one after another; attributes are those of each."""

    def build(graph: OnnxGraph, x: Value) -> Value:
        for op_type in op_types:
            x = graph.add(op_type, x, **attributes)
        return x

    return build


def _apply_numbers(op_type: str, *numbers: float) -> Function:
    return lambda graph, x: graph.add(op_type, x, *numbers)


def _multiply_by_sigmoid(scale: float) -> Function:
    def build(graph: OnnxGraph, x: Value) -> Value:
        inner = x if scale == 1.0 else graph.add("Mul", x, scale)
        return graph.add("Mul", x, graph.add("Sigmoid", inner))

    return build


def _build_new_gelu(graph: OnnxGraph, x: Value) -> Value:
    """Add GELU with the tanh approximation as model libraries spell it."""
    cube = graph.add("Mul", graph.add("Pow", x, 3.0), 0.044715)
    inner = graph.add("Mul", graph.add("Add", x, cube), math.sqrt(2.0 / math.pi))
    half = graph.add("Mul", x, 0.5)
    return graph.add("Mul", half, graph.add("Add", graph.add("Tanh", inner), 1.0))


FUNCTIONS: dict[str, Function] = {
    **{
        name: _apply(op_type)
        for name, op_type in {
            "relu": "Relu", "gelu": "Gelu", "sigmoid": "Sigmoid", "tanh": "Tanh", "elu": "Elu",
            "celu": "Celu", "selu": "Selu", "hardswish": "HardSwish", "softplus": "Softplus",
            "mish": "Mish", "neg": "Neg", "copy": "Identity", "exp": "Exp", "log": "Log",
            "sqrt": "Sqrt", "abs": "Abs", "sin": "Sin", "cos": "Cos", "erf": "Erf",
        }.items()
    },
    "newgeluactivation": _build_new_gelu,
    "quickgeluactivation": _multiply_by_sigmoid(1.702),
    "silu": _multiply_by_sigmoid(1.0),
    "leaky_relu": _apply("LeakyRelu", alpha=0.01),
    "hardsigmoid": _apply("HardSigmoid", alpha=1.0 / 6.0, beta=0.5),
    "softmax": _apply("Softmax", axis=-1),
    "log_softmax": _apply("LogSoftmax", axis=-1),
    "logsigmoid": _apply("Sigmoid", "Log"),
    "rsqrt": _apply("Sqrt", "Reciprocal"),
    "log1p": lambda graph, x: graph.add("Log", graph.add("Add", x, 1.0)),
    "relu6": _apply_numbers("Clip", 0.0, 6.0),
    "hardtanh": _apply_numbers("Clip", -1.0, 1.0),
    "clamp": _apply_numbers("Clip", -1.0, 1.0),
    "add": _apply_numbers("Add", 1.0),
    "mul": _apply_numbers("Mul", 0.5),
    "pow": _apply_numbers("Pow", 2.0),
    "square": _apply_numbers("Pow", 2.0),
    "cumsum": lambda graph, x: graph.add("CumSum", x, len(x.shape) - 1),
}  # fmt: skip
"""Functions that keep the shape of their only input."""

REDUCTIONS = {
    "sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin",
    "max": "ReduceMax", "min": "ReduceMin", "logsumexp": "ReduceLogSumExp", "norm": "ReduceL2",
}  # fmt: skip
"""Functions that reduce an axis, or all of them."""

_RESIZES = {
    "interpolate nearest": "nearest", "interpolate linear": "linear",
    "interpolate bilinear": "linear", "interpolate bicubic": "cubic",
    "interpolate trilinear": "linear",
}  # fmt: skip


def _reduce_axes(graph: OnnxGraph, op_type: str, x: Value, axes: Sequence[int]) -> Value:
    return graph.add(op_type, x, [axis + 1 for axis in axes], keepdims=0)


def _reduce_to(graph: OnnxGraph, op_type: str, x: Value, out: Shape) -> Value | None:
    """Add a reduction of the one axis that is missing or 1 in the output, or of all axes."""
    shape = x.sample
    axes: Sequence[int] = range(len(shape)) if math.prod(out) == 1 else ()
    for axis in reversed(range(len(shape))):
        before, after = shape[:axis], shape[axis + 1 :]
        if out in ((*before, *after), (*before, 1, *after)):
            axes = [axis]
    if not axes:
        return None
    return graph.reshape(_reduce_axes(graph, op_type, x, axes), (x.shape[0], *out))


def _repeat(graph: OnnxGraph, x: Value, out: Shape) -> Value | None:
    """Add an expansion that repeats every element of one axis."""
    axes = [axis for axis, size in enumerate(x.sample) if size != out[axis]]
    if len(out) != len(x.sample) or len(axes) != 1:
        return None
    end = axes[0] + 2
    inner = graph.reshape(x, (*x.shape[:end], 1, *x.shape[end:]))
    times = out[axes[0]] // x.sample[axes[0]]
    wide = graph.add("Expand", inner, (*x.shape[:end], times, *x.shape[end:]))
    return graph.reshape(wide, (x.shape[0], *out))


def _concat_flat(graph: OnnxGraph, inputs: Sequence[Value], out: Shape) -> Value:
    """Add a concatenation along an axis that the record does not name: the same elements."""
    flat = [graph.flatten(x) for x in inputs]
    if len(flat) == 1:
        return graph.fit(graph.add("Identity", flat[0]), out)
    wanted = math.prod(out)
    if sum(x.shape[1] for x in flat) > wanted:
        # The module concatenated only slices of them.
        share = max(1, wanted // len(flat))
        flat = [graph.slice(x, 1, 0, min(share, x.shape[1])) for x in flat]
    return graph.fit(graph.add("Concat", *flat, axis=1), out)


# -- embeddings, recurrent layers and attention --------------------------------------------------


def _build_embedding(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    table = graph.weights("weight", (op.sizes["vocabulary"], op.sizes["width"]))
    return graph.add("Gather", table, inputs[0])


def _build_embedding_bag(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add sums of rows, ``bags`` for each sample."""
    tokens, width, bags = inputs[0], op.sizes["width"], op.sizes["bags"]
    table = graph.weights("inner.weight", (op.sizes["vocabulary"], width))
    per_bag = max(1, math.prod(tokens.sample) // bags)
    rows = graph.add("Gather", table, graph.fit(tokens, (bags, per_bag)))
    sums = graph.add("ReduceSum", rows, [2], keepdims=0)
    return sums if bags > 1 else graph.reshape(sums, (graph.batch, width))


def _build_recurrent(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add an LSTM, GRU or plain RNN that returns its output sequence."""
    s = op.sizes
    is_both = bool(s["bidirectional"])
    x = graph.transpose(inputs[0], (1, 0, 2))
    tokens, batch = x.shape[:2]
    # PyTorch multiplies by the reset gate after the product.
    more = {"linear_before_reset": 1} if op.kind == "gru" else {}
    direction = "bidirectional" if is_both else "forward"
    for level in range(s["depth"]):
        weights = _read_recurrent(graph, op, x.shape[-1], level)
        x = graph.add(
            op.kind.upper(), x, *weights, hidden_size=s["hidden"], direction=direction, **more
        )
        x = graph.transpose(x, (0, 2, 1, 3))
        x = graph.reshape(x, (tokens, batch, (1 + is_both) * s["hidden"]))
    return graph.transpose(x, (1, 0, 2))


def _read_recurrent(graph: OnnxGraph, op: Op, width: int, level: int) -> list[Array]:
    """Return the weights of one level: those of the input, of the state, and the biases."""
    order, hidden = _GATES[op.kind], op.sizes["hidden"]
    rows = len(order) * hidden
    shapes: dict[str, Shape] = {"weight_ih": (rows, width), "weight_hh": (rows, hidden)}
    if op.sizes["bias"]:
        shapes.update(bias_ih=(rows,), bias_hh=(rows,))
    stacked = []
    for name, shape in shapes.items():
        directions = []
        for suffix in ("", "_reverse")[: 1 + op.sizes["bidirectional"]]:
            weight = graph.weights(f"inner.{name}_l{level}{suffix}", shape)
            gates = np.split(weight, len(order))
            directions.append(np.concatenate([gates[gate] for gate in order]))
        stacked.append(np.stack(directions))
    return [*stacked[:2], np.concatenate(stacked[2:], axis=1)] if stacked[2:] else stacked


def _build_sdpa(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add scaled dot-product attention on one packed input, or on query, key and value."""
    s = op.sizes
    windows, tokens = s.get("windows", 1), s["tokens"]
    if windows == 1:
        return _attend(graph, s, inputs)
    # A window attends only to itself: windows are samples.
    rows = []
    for x in inputs:
        if len(x.shape) != 4 or x.shape[1] != windows:
            x = graph.fit(x, (windows, tokens, s["heads"] * s["head_dim"]))
        rows.append(graph.reshape(x, (x.shape[0] * windows, *x.shape[2:])))
    out = _attend(graph, s, rows)
    return graph.reshape(out, (graph.batch, windows, tokens, out.shape[-1]))


def _build_attention(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add multi-head attention: one product for query, key and value, attention, one product."""
    s, x = op.sizes, inputs[0]
    heads, rows = s["heads"], x.shape

    def project(x: Value, weight: str, bias: str, cout: int) -> Value:
        product = graph.add("MatMul", x, graph.weights(weight, (cout, x.shape[-1])).T)
        return graph.add("Add", graph.weights(bias, (cout,)), product) if s["bias"] else product

    x = graph.reshape(x, (math.prod(rows[:-2]), *rows[-2:]))
    packed = project(x, "inner.in_proj_weight", "inner.in_proj_bias", 3 * s["width"])
    inner = {"heads": heads, "kv_heads": heads, "head_dim": s["width"] // heads, "causal": 0}
    out = _attend(graph, Sizes({**inner, "tokens": rows[-2], "kv_tokens": rows[-2]}), [packed])
    out = project(out, "inner.out_proj.weight", "inner.out_proj.bias", s["width"])
    return graph.reshape(out, rows)


def _attend(graph: OnnxGraph, s: Sizes, inputs: Sequence[Value]) -> Value:
    tokens, kv_tokens = s["tokens"], s["kv_tokens"]
    query, key, value = _split_inputs(graph, s, inputs)
    key = graph.transpose(key, (0, 1, 3, 2))
    # Exporters scale both factors by the root of the scale, and not the product.
    root = s["head_dim"] ** -0.25
    query, key = graph.add("Mul", query, root), graph.add("Mul", key, root)
    scores = graph.add("MatMul", query, key)
    if len(inputs) > 3:
        scores = graph.add("Add", scores, graph.fit(inputs[3], (1, tokens, kv_tokens)))
    elif s["causal"]:
        mask = np.triu(np.full((tokens, kv_tokens), _LOWEST_SCORE, dtype="float32"), 1)
        scores = graph.add("Add", scores, graph.share(mask))
    out = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)
    out = graph.transpose(out, (0, 2, 1, 3))
    return graph.reshape(out, (query.shape[0], tokens, s["heads"] * s["head_dim"]))


def _split_inputs(graph: OnnxGraph, s: Sizes, inputs: Sequence[Value]) -> list[Value]:
    """Return query, key and value by heads, from one packed input or from several."""
    heads, head_dim = s["heads"], s["head_dim"]
    counts = (heads, s["kv_heads"], s["kv_heads"])
    lengths = (s["tokens"], s["kv_tokens"], s["kv_tokens"])
    widths = [count * head_dim for count in counts]
    if len(inputs) == 1 and inputs[0].sample == (s["tokens"], sum(widths)):
        axis = len(inputs[0].shape) - 1
        inputs = graph.add_split("Split", [inputs[0], widths], 3, axis=axis)
    values = []
    for position, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        x = inputs[min(position, len(inputs) - 1)]
        by_heads, by_rows = (count, length, head_dim), (length, count * head_dim)
        if length > s["tokens"] and x.sample not in (by_rows, by_heads):
            # Keys and values of earlier tokens, which inference has computed before.
            x = graph.add_input(f"cache_{len(graph.inputs)}", (x.shape[0], *by_heads))
        if x.sample != by_heads:
            # Another sequence, or a view was lost on reading: any elements will do.
            x = graph.fit(x, by_rows)
            x = graph.reshape(x, (x.shape[0], length, count, head_dim))
            x = graph.transpose(x, (0, 2, 1, 3))
        if count != heads:
            # Several heads read each: repeated as exporters do.
            batch, _, *rest = x.shape
            x = graph.reshape(x, (batch, count, 1, *rest))
            x = graph.add("Expand", x, (batch, count, heads // count, *rest))
            x = graph.reshape(x, (batch, heads, *rest))
        values.append(x)
    return values


# -- elements by index, and views ----------------------------------------------------------------


def _build_index(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add a selection by constant indices along an axis, across samples, or for each element."""
    s, x = op.sizes, inputs[0]
    batch, out = x.shape[0], tuple(s["out"])
    wanted = batch * math.prod(out)
    if s["params"]:
        width = out[-1] if s["params"] % out[-1] == 0 else 1
        table = graph.weights("table", (s["params"],)).reshape(-1, width)
        found = graph.add("Gather", table, _draw(len(table), wanted // width), axis=0)
        return graph.reshape(found, (batch, *out))
    if s["across"] and len(x.shape) > 1:
        rows = graph.reshape(x, (batch * x.shape[1], math.prod(x.shape[2:])))
        found = graph.add("Gather", rows, _draw(rows.shape[0], batch * out[0]), axis=0)
        return graph.fit(graph.reshape(found, (batch, out[0] * rows.shape[1])), out)
    if not s["axes"] or max(s["axes"]) + 1 >= len(x.shape):
        flat = graph.flatten(x)
        index = _draw(flat.shape[1], wanted).reshape(batch, math.prod(out))
        return graph.reshape(graph.add("GatherElements", flat, index, axis=1), (batch, *out))
    # Elements along some axes of a sample, which become its first axis.
    rest = [axis for axis in range(len(x.sample)) if axis not in s["axes"]]
    moved = graph.transpose(x, [0, *(axis + 1 for axis in (*s["axes"], *rest))])
    places, width = (math.prod(x.sample[axis] for axis in one) for one in (s["axes"], rest))
    rows = graph.reshape(moved, (batch, places, width))
    index = _draw(places, max(1, math.prod(out) // width))
    return graph.fit(graph.add("Gather", rows, index, axis=1), out)


def _build_scatter(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add an addition of elements to arbitrary places."""
    target = graph.flatten(inputs[0])
    source = graph.fit(inputs[-1], (math.prod(op.sizes["source"]),))
    index = _draw(target.shape[1], math.prod(source.shape)).reshape(source.shape)
    out = graph.add("ScatterElements", target, index, source, axis=1, reduction="add")
    return graph.reshape(out, inputs[0].shape)


def _build_sort(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add a sort of the last axis, or of its largest elements."""
    x, out = inputs[0], tuple(op.sizes["out"])
    is_part = op.sizes["fn"] == "topk" and out[-1] < x.shape[-1]
    kept = out[-1] if is_part else x.shape[-1]
    # PyTorch sorts upwards, and its topk returns the largest.
    values, _ = graph.add_split("TopK", [x, [kept]], 2, axis=-1, largest=int(is_part))
    return graph.fit(values, out)


def _build_slice(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add a copy of the first elements of each sample: ONNX has no views of a part."""
    x, out = graph.flatten(inputs[0]), tuple(op.sizes["out"])
    return graph.fit(x, out)


def _build_gradient_copy(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    """Add a reshape, a copy of a part, or an expansion of the first element of each sample."""
    x, out = inputs[0], tuple(op.sizes["out"])
    if math.prod(out) <= math.prod(x.sample):
        return _build_slice(graph, op, inputs)
    one = graph.slice(graph.flatten(x), 1, 0, 1)
    one = graph.reshape(one, (x.shape[0], *(1 for _ in out)))
    return graph.add("Expand", one, (x.shape[0], *out))


def _build_view(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    x = inputs[0]
    out = find_kind(op.kind).out_shape(op.sizes, x.sample)
    if math.prod(out) != math.prod(x.sample):
        raise NetError(f"a tensor of shape {x.sample} cannot be viewed as {out}")
    return graph.reshape(x, (x.shape[0], *out))


def _build_permute(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    return graph.transpose(inputs[0], [0, *(axis + 1 for axis in op.sizes["order"])])


def _build_last(graph: OnnxGraph, op: Op, inputs: Sequence[Value]) -> Value:
    return graph.add("Gather", inputs[0], inputs[0].shape[1] - 1, axis=1)


def _fill(shape: Shape, value: float) -> Array:
    return np.full(shape, value, dtype="float32")


def _draw(limit: int, count: int) -> Array:
    # Always the same: which elements are moved does not matter.
    return np.random.default_rng(0).integers(0, limit, count)


OP_BUILDERS: dict[str, OpBuilder] = {
    **{f"conv{dims}d": _build_conv for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": _build_conv for dims in (1, 2, 3)},
    "linear": _build_linear,
    "grouped_linear": _build_grouped_linear,
    "embedding": _build_embedding,
    "embedding_bag": _build_embedding_bag,
    **dict.fromkeys(_GATES, _build_recurrent),
    "attention": _build_attention,
    "sdpa": _build_sdpa,
    "matmul": _build_matmul,
    "batch_norm": _build_batch_norm,
    "layer_norm": _build_layer_norm,
    "group_norm": _build_group_norm,
    "rms_norm": _build_rms_norm,
    "elementwise": _build_function,
    "pool": _build_pool,
    "dropout": lambda graph, op, inputs: inputs[0],
    "index": _build_index,
    "scatter": _build_scatter,
    "sort": _build_sort,
    "slice": _build_slice,
    "gradient_copy": _build_gradient_copy,
    "flatten": _build_view,
    "view": _build_view,
    "permute": _build_permute,
    "last": _build_last,
}
