"""Build an ONNX graph from a Network: one builder per kind of operator.

Nodes are those that PyTorch's exporter writes, so that ONNX Runtime fuses them as it fuses an
exported file. Operators that move elements by index move arbitrary ones, as many as in the network
that was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import cycle, pairwise
from typing import Any

import numpy as np

from joulecast.onnx_nets.ort_graph import Array, NetworkWeights, OnnxGraph, Shape, Value
from joulecast.operators import count_operand, find_kind, output_shape
from joulecast.operators.building import (
    InputFit,
    concat_channels_to_fit,
    find_operand_shape,
    is_op_join,
    plan_input_fits,
    plan_wiring,
    refuse_unbuildable,
)
from joulecast.records import Layer, Network, Op, Sizes
from joulecast.system.errors import InputError, NetError, arg

_EPSILON = 1e-5
# Those of PyTorch's modules: fused, and spelled out in elementary operators.
_RMS_EPSILONS = (1.1920929e-07, 1e-6)
# ONNX's order of gates, as positions in PyTorch's.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
_LOWEST_SCORE = -1e9
# Other kinds read one result; what they select by, such as indices, is drawn.
_READING_SEVERAL = ("elementwise", "matmul", "sdpa", "scatter")


def add_network(graph: OnnxGraph, network: Network, x: Value, weights: NetworkWeights) -> Value:
    """Add the layers of a network, and return the result of the last one.

    Raises:
        NetError: The network is empty, cannot be rebuilt, or has a layer that ONNX lacks.
    """
    refuse_unbuildable(network, "export it to ONNX and give the file (net.onnx)")
    graph.weights, results = weights, [x]
    for number, wiring in enumerate(plan_wiring(network)):
        layer, inputs = network.layers[number], [results[read] for read in wiring.reads]
        name = layer.name or f"{number}.{layer.kind}"
        try:
            inputs = _fit_inputs(layer, inputs)
            if layer.join != "none" and not is_op_join(layer):
                inputs = [_join(layer.join, inputs)]
            for place, op in enumerate((Op(layer.kind, layer.sizes), *layer.tail)):
                prefix = f"tail.{place - 1}." if place else "op."
                graph.place = (number, prefix)
                inputs = inputs if op.kind in _READING_SEVERAL else inputs[:1]
                inputs = [OP_BUILDERS[op.kind](op, *inputs)]
        except (NetError, InputError) as error:
            raise NetError(f"layer {name}: {error}") from error
        if inputs[0].sample != output_shape(layer):
            raise NetError(
                f"layer {name} gives {inputs[0].sample} in ONNX instead of {output_shape(layer)}: "
                f"run it in PyTorch ({arg('on', 'cpu')})"
            )
        results += inputs
    return results[-1]


def draw_weights(seed: int) -> NetworkWeights:
    """Return weights drawn from a seed, each uniform in the range of PyTorch's layers."""
    draw = np.random.default_rng(seed)

    def weights(number: int, name: str, shape: Shape, start: float | None) -> Array:
        if start is not None:
            return _fill(shape, start)
        bound = 1.0 / math.sqrt(max(1, math.prod(shape[1:]) if shape[1:] else math.prod(shape)))
        return draw.random(shape, dtype="float32") * np.float32(2.0 * bound) - np.float32(bound)

    return weights


def _fit_inputs(layer: Layer, inputs: list[Value]) -> list[Value]:
    shapes = [x.sample for x in inputs]
    fits = plan_input_fits(layer, shapes)
    for place, (how, shape) in enumerate(fits):
        if how is InputFit.ELEMENTS:
            inputs[place] = inputs[place].fit(shape)
        elif how is InputFit.ONE_ELEMENT:
            inputs[place] = inputs[place].take_first(len(shape))
    wanted = concat_channels_to_fit(layer, shapes)
    if not wanted:
        return inputs
    # Some are repeated or cut, to have as many channels in total.
    fitted: list[Value] = []
    for x in cycle(inputs):
        fitted.append(x.slice(1, 0, min(wanted, x.shape[1])))
        wanted -= fitted[-1].shape[1]
        if not wanted:
            break
    return fitted


# -- layers with weights, and pooling --------------------------------------------------------


def _build_conv(op: Op, x: Value) -> Value:
    s, is_transposed = op.sizes, "transpose" in op.kind
    ends = (s["cin"], s["cout"]) if is_transposed else (s["cout"], s["cin"])
    arrays = [x.graph.draw("weight", ends[0], ends[1] // s["groups"], *s["kernel"])]
    if s["bias"]:
        arrays.append(x.graph.draw("bias", s["cout"]))
    more = {"output_padding": list(s["output_padding"])} if is_transposed else {}
    return x.apply(
        "ConvTranspose" if is_transposed else "Conv", *arrays,
        kernel_shape=list(s["kernel"]), strides=list(s["stride"]),
        pads=[*s["padding"], *s["padding"]], dilations=list(s["dilation"]), group=s["groups"],
        **more,
    )  # fmt: skip


def _build_linear(op: Op, x: Value) -> Value:
    cin, cout = op.sizes["cin"], op.sizes["cout"]
    weight = x.graph.draw("weight", cout, cin)
    bias = x.graph.draw("bias", cout) if op.sizes["bias"] else None
    if len(x.shape) == 2 and bias is not None:
        return x.apply("Gemm", weight, bias, transB=1)
    out = x @ weight.T
    return out if bias is None else x.graph.add("Add", bias, out)


def _build_grouped_linear(op: Op, x: Value) -> Value:
    """Add the experts of a mixture, each multiplying an equal share of the rows."""
    experts, cin, cout = (op.sizes[name] for name in ("experts", "cin", "cout"))
    weight = x.graph.draw("weight", experts, cout, cin)
    rows = x.reshape(math.prod(x.shape[:-1]), cin)
    ends = [rows.shape[0] * one // experts for one in range(experts + 1)]
    products = [
        rows.slice(0, begin, end) @ weight[expert].T
        for expert, (begin, end) in enumerate(pairwise(ends))
        if end > begin
    ]
    return x.graph.add("Concat", *products, axis=0).reshape(*x.shape[:-1], cout)


def _build_matmul(op: Op, left: Value, *others: Value) -> Value:
    second_shape = find_kind(op.kind).second_shape
    assert second_shape is not None
    return left @ (others[0] if others else left.fit(second_shape(op.sizes)))


def _build_pool(op: Op, x: Value) -> Value:
    s, out = op.sizes, find_kind(op.kind).out_shape(op.sizes, x.sample)
    is_max = s["fn"].endswith("max")
    kernel, stride, padding = ([*s[name]] for name in ("kernel", "stride", "padding"))
    ceil = s["ceil"]
    if s["fn"].startswith("adaptive"):
        if set(out[1:]) == {1}:
            return x.apply("GlobalMaxPool" if is_max else "GlobalAveragePool")
        if set(x.sample[1:]) == {1}:
            return x.apply("Expand", (x.shape[0], *out))
        pairs = [*zip(x.sample[1:], out[1:], strict=True)]
        if any(size % steps for size, steps in pairs):
            raise NetError(
                f"ONNX has no adaptive pooling from {x.sample[1:]} to {out[1:]}: give an input "
                "whose size is a multiple of the output's"
            )
        kernel = stride = [size // steps for size, steps in pairs]
        padding, ceil = [0] * len(kernel), 0
    windows = {"kernel_shape": kernel, "strides": stride, "pads": padding * 2, "ceil_mode": ceil}
    if is_max:
        return x.apply("MaxPool", **windows)
    return x.apply("AveragePool", count_include_pad=1, **windows)


# -- norms ---------------------------------------------------------------------------------------


def _build_batch_norm(op: Op, x: Value) -> Value:
    starts = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    arrays = [
        x.graph.draw(name, x.shape[1], start=start)
        if op.sizes["affine"] or name.startswith("running")
        else _fill((x.shape[1],), start)
        for name, start in starts.items()
    ]
    return x.apply("BatchNormalization", *arrays, epsilon=_EPSILON)


def _build_layer_norm(op: Op, x: Value) -> Value:
    dims, affine = op.sizes["dims"], op.sizes["affine"]
    features = x.shape[len(x.shape) - dims :]
    scale = x.graph.draw("weight", *features, start=1.0) if affine else _fill(features, 1.0)
    has_bias = affine and op.sizes["bias"]
    bias = [x.graph.draw("bias", *features, start=0.0)] if has_bias else []
    return x.apply("LayerNormalization", scale, *bias, axis=-dims, epsilon=_EPSILON)


def _build_group_norm(op: Op, x: Value) -> Value:
    groups = op.sizes["groups"]
    # As exporters write it: groups are the channels of an instance norm.
    rows = x.reshape(x.shape[0], groups, math.prod(x.sample) // groups)
    ends = [_fill((groups,), start) for start in (1.0, 0.0)]
    out = rows.apply("InstanceNormalization", *ends, epsilon=_EPSILON).reshape(*x.shape)
    if not op.sizes["affine"]:
        return out
    channels, *space = x.sample
    scale, bias = (
        x.graph.draw(name, channels, start=start).reshape(channels, *(1 for _ in space))
        for name, start in (("weight", 1.0), ("bias", 0.0))
    )
    return out * scale + bias


def _build_rms_norm(op: Op, x: Value) -> Value:
    # The spelling that ONNX Runtime fuses to one kernel.
    mean = x.apply("Pow", 2.0).apply("ReduceMean", [-1], keepdims=1)
    out = x.apply("Div", (mean + _RMS_EPSILONS[op.sizes.get("spelled", 0)]).apply("Sqrt"))
    return out * x.graph.draw("weight", x.shape[-1], start=1.0) if op.sizes["affine"] else out


# -- functions of elements -----------------------------------------------------------------------


def _build_function(op: Op, x: Value, *others: Value) -> Value:
    """Add a function; one that ONNX lacks becomes as many passes over the elements."""
    s, fn, inputs = op.sizes, op.sizes["fn"], (x, *others)
    kind = find_kind(op.kind)
    out = kind.out_shape(s, x.sample)
    size = count_operand(s)
    if fn.startswith("concat along"):
        return _concat_flat(inputs, kind.out_shape(s, tuple(s.get("shape", x.sample))))
    if size and s["inputs"] == 1:
        operand = x.graph.draw("operand", *find_operand_shape(size, x.sample), start=1.0)
        return x.apply(fn.capitalize(), operand)
    if fn in _JOINS and others:
        return _join(fn, inputs)
    if fn == "mean" and s["axes"]:
        return x.apply("ReduceMean", [axis + 1 for axis in s["axes"]], keepdims=0)
    if fn in REDUCTIONS and (found := _reduce_to(REDUCTIONS[fn], x, out)):
        return found
    if fn in FUNCTIONS and out == x.sample and not others:
        return FUNCTIONS[fn](x)
    if fn in _RESIZES and len(out) == len(x.sample) and out[0] == x.sample[0]:
        mode, sizes = _RESIZES[fn], (x.shape[0], *out)
        more = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        more = more if mode == "nearest" else {}
        return x.apply("Resize", None, None, sizes, mode=mode, cubic_coeff_a=-0.75, **more)
    if fn == "repeat_interleave" and (found := _repeat(x, out)):
        return found
    # The traffic of a function that ONNX lacks, not its values.
    x = _join("add", inputs)
    for _ in range(s["passes"] - bool(others)):
        x = x * 0.5
    return x.fit(out)


_JOINS = {"add": "Add", "mul": "Mul", "concat": "Concat"}


def _join(fn: str, inputs: Sequence[Value]) -> Value:
    """Put inputs together, which may be broadcast."""
    if fn == "concat":
        return inputs[0].apply("Concat", *inputs[1:], axis=1)
    return reduce(lambda x, other: x.apply(_JOINS[fn], other), inputs)


def _spell_gelu(x: Value) -> Value:
    """Add GELU with the tanh approximation as model libraries spell it."""
    cube = x.apply("Pow", 3.0) * 0.044715
    inner = (x + cube) * math.sqrt(2.0 / math.pi)
    half = x * 0.5
    return half * (inner.apply("Tanh") + 1.0)


def _node(op_type: str, *numbers: float, **attributes: float) -> Callable[[Value], Value]:
    return lambda x: x.apply(op_type, *numbers, **attributes)


FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    **{
        name: _node(op_type)
        for name, op_type in {
            "relu": "Relu", "gelu": "Gelu", "sigmoid": "Sigmoid", "tanh": "Tanh", "elu": "Elu",
            "celu": "Celu", "selu": "Selu", "hardswish": "HardSwish", "softplus": "Softplus",
            "mish": "Mish", "neg": "Neg", "copy": "Identity", "exp": "Exp", "log": "Log",
            "sqrt": "Sqrt", "abs": "Abs", "sin": "Sin", "cos": "Cos", "erf": "Erf",
        }.items()
    },
    "newgeluactivation": _spell_gelu,
    "quickgeluactivation": lambda x: x * (x * 1.702).apply("Sigmoid"),
    "silu": lambda x: x * x.apply("Sigmoid"),
    "leaky_relu": _node("LeakyRelu", alpha=0.01),
    "hardsigmoid": _node("HardSigmoid", alpha=1.0 / 6.0, beta=0.5),
    "softmax": _node("Softmax", axis=-1),
    "log_softmax": _node("LogSoftmax", axis=-1),
    "logsigmoid": lambda x: x.apply("Sigmoid").apply("Log"),
    "rsqrt": lambda x: x.apply("Sqrt").apply("Reciprocal"),
    "log1p": lambda x: (x + 1.0).apply("Log"),
    "relu6": _node("Clip", 0.0, 6.0),
    "hardtanh": _node("Clip", -1.0, 1.0),
    "clamp": _node("Clip", -1.0, 1.0),
    "add": _node("Add", 1.0),
    "mul": _node("Mul", 0.5),
    "pow": _node("Pow", 2.0),
    "square": _node("Pow", 2.0),
    "cumsum": lambda x: x.apply("CumSum", len(x.shape) - 1),
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


def _reduce_to(op_type: str, x: Value, out: Shape) -> Value | None:
    """Add a reduction of the one axis that is missing or 1 in the output, or of all axes."""
    shape = x.sample
    axes: Sequence[int] = range(len(shape)) if math.prod(out) == 1 else ()
    for axis in reversed(range(len(shape))):
        before, after = shape[:axis], shape[axis + 1 :]
        if out in ((*before, *after), (*before, 1, *after)):
            axes = [axis]
    if not axes:
        return None
    return x.apply(op_type, [axis + 1 for axis in axes], keepdims=0).reshape(x.shape[0], *out)


def _repeat(x: Value, out: Shape) -> Value | None:
    """Add an expansion that repeats every element of one axis."""
    axes = [axis for axis, size in enumerate(x.sample) if size != out[axis]]
    if len(out) != len(x.sample) or len(axes) != 1:
        return None
    before, after = x.shape[: axes[0] + 2], x.shape[axes[0] + 2 :]
    times = out[axes[0]] // x.sample[axes[0]]
    wide = x.reshape(*before, 1, *after).apply("Expand", (*before, times, *after))
    return wide.reshape(x.shape[0], *out)


def _concat_flat(inputs: Sequence[Value], out: Shape) -> Value:
    """Add a concatenation along an axis that the record does not name: the same elements."""
    flat = [x.flatten() for x in inputs]
    if len(flat) == 1:
        return flat[0].apply("Identity").fit(out)
    wanted = math.prod(out)
    if sum(x.shape[1] for x in flat) > wanted:
        # The module concatenated only slices of them.
        share = max(1, wanted // len(flat))
        flat = [x.slice(1, 0, min(share, x.shape[1])) for x in flat]
    return _join("concat", flat).fit(out)


# -- embeddings, recurrent layers and attention --------------------------------------------------


def _build_embedding(op: Op, x: Value) -> Value:
    table = x.graph.draw("weight", op.sizes["vocabulary"], op.sizes["width"])
    return x.graph.add("Gather", table, x)


def _build_embedding_bag(op: Op, tokens: Value) -> Value:
    """Add sums of rows, ``bags`` for each sample."""
    width, bags = op.sizes["width"], op.sizes["bags"]
    table = tokens.graph.draw("inner.weight", op.sizes["vocabulary"], width)
    per_bag = max(1, math.prod(tokens.sample) // bags)
    rows = tokens.graph.add("Gather", table, tokens.fit((bags, per_bag)))
    sums = rows.apply("ReduceSum", [2], keepdims=0)
    return sums if bags > 1 else sums.reshape(tokens.shape[0], width)


def _build_recurrent(op: Op, x: Value) -> Value:
    """Add an LSTM, GRU or plain RNN that returns its output sequence."""
    s, order = op.sizes, _GATES[op.kind]
    hidden, suffixes = s["hidden"], ("", "_reverse")[: 1 + s["bidirectional"]]
    x = x.transpose(1, 0, 2)
    tokens, batch = x.shape[:2]
    more: dict[str, Any] = {"direction": "bidirectional" if s["bidirectional"] else "forward"}
    if op.kind == "gru":
        # PyTorch multiplies by the reset gate after the product.
        more["linear_before_reset"] = 1
    for level in range(s["depth"]):
        # The weights of the input and of the state, and the biases, of each direction.
        rows = len(order) * hidden
        shapes: dict[str, Shape]
        shapes = {"weight_ih": (rows, x.shape[-1]), "weight_hh": (rows, hidden)}
        if s["bias"]:
            shapes.update(bias_ih=(rows,), bias_hh=(rows,))
        arrays = []
        for name, shape in shapes.items():
            drawn = [x.graph.draw(f"inner.{name}_l{level}{one}", *shape) for one in suffixes]
            split = [np.split(weight, len(order)) for weight in drawn]
            arrays.append(np.stack([np.concatenate([one[i] for i in order]) for one in split]))
        biases = [np.concatenate(arrays[2:], axis=1)] if s["bias"] else []
        x = x.apply(op.kind.upper(), *arrays[:2], *biases, hidden_size=hidden, **more)
        x = x.transpose(0, 2, 1, 3).reshape(tokens, batch, len(suffixes) * hidden)
    return x.transpose(1, 0, 2)


def _build_sdpa(op: Op, *inputs: Value) -> Value:
    """Add scaled dot-product attention on one packed input, or on query, key and value."""
    s, batch = op.sizes, inputs[0].graph.batch
    windows, tokens = s.get("windows", 1), s["tokens"]
    if windows == 1:
        return _attend(s, inputs)
    # A window attends only to itself: windows are samples.
    rows = []
    for x in inputs:
        if len(x.shape) != 4 or x.shape[1] != windows:
            x = x.fit((windows, tokens, s["heads"] * s["head_dim"]))
        rows.append(x.reshape(x.shape[0] * windows, *x.shape[2:]))
    out = _attend(s, rows)
    return out.reshape(batch, windows, tokens, out.shape[-1])


def _build_attention(op: Op, x: Value) -> Value:
    """Add multi-head attention: one product for query, key and value, attention, one product."""
    s, rows = op.sizes, x.shape
    heads, width = s["heads"], s["width"]

    def project(x: Value, weight: str, bias: str, cout: int) -> Value:
        product = x @ x.graph.draw(weight, cout, x.shape[-1]).T
        return x.graph.add("Add", x.graph.draw(bias, cout), product) if s["bias"] else product

    x = x.reshape(math.prod(rows[:-2]), *rows[-2:])
    packed = project(x, "inner.in_proj_weight", "inner.in_proj_bias", 3 * width)
    inner = {"heads": heads, "kv_heads": heads, "head_dim": width // heads, "causal": 0}
    out = _attend(Sizes({**inner, "tokens": rows[-2], "kv_tokens": rows[-2]}), [packed])
    return project(out, "inner.out_proj.weight", "inner.out_proj.bias", width).reshape(*rows)


def _attend(s: Sizes, inputs: Sequence[Value]) -> Value:
    tokens, kv_tokens = s["tokens"], s["kv_tokens"]
    query, key, value = _split_inputs(s, inputs)
    key = key.transpose(0, 1, 3, 2)
    # Exporters scale both factors by the root of the scale, and not the product.
    root = float(s["head_dim"]) ** -0.25
    scores: Value = (query * root) @ (key * root)
    if len(inputs) > 3:
        scores = scores + inputs[3].fit((1, tokens, kv_tokens))
    elif s["causal"]:
        mask = np.triu(np.full((tokens, kv_tokens), _LOWEST_SCORE, dtype="float32"), 1)
        scores = scores + query.graph.share(mask)
    out: Value = scores.apply("Softmax", axis=-1) @ value
    return out.transpose(0, 2, 1, 3).reshape(query.shape[0], tokens, s["heads"] * s["head_dim"])


def _split_inputs(s: Sizes, inputs: Sequence[Value]) -> list[Value]:
    """Return query, key and value by heads, from one packed input or from several."""
    heads, head_dim, graph = s["heads"], s["head_dim"], inputs[0].graph
    counts = (heads, s["kv_heads"], s["kv_heads"])
    lengths = (s["tokens"], s["kv_tokens"], s["kv_tokens"])
    widths = [count * head_dim for count in counts]
    if len(inputs) == 1 and inputs[0].sample == (s["tokens"], sum(widths)):
        axis = len(inputs[0].shape) - 1
        inputs = graph.add_split("Split", [inputs[0], widths], 3, axis=axis)
    values = []
    for position, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        x = inputs[min(position, len(inputs) - 1)]
        batch, by_heads, by_rows = x.shape[0], (count, length, head_dim), (length, count * head_dim)
        if length > s["tokens"] and x.sample not in (by_rows, by_heads):
            # Keys and values of earlier tokens, which inference has computed before.
            x = graph.add_input(f"cache_{len(graph.inputs)}", (batch, *by_heads))
        if x.sample != by_heads:
            # Another sequence, or a view was lost on reading: any elements will do.
            x = x.fit(by_rows).reshape(batch, length, count, head_dim).transpose(0, 2, 1, 3)
        if count != heads:
            # Several heads read each: repeated as exporters do.
            x = x.reshape(batch, count, 1, length, head_dim)
            x = x.apply("Expand", (batch, count, heads // count, length, head_dim))
            x = x.reshape(batch, heads, length, head_dim)
        values.append(x)
    return values


# -- elements by index, and views ----------------------------------------------------------------


def _build_index(op: Op, x: Value) -> Value:
    """Add a selection by constant indices along an axis, across samples, or for each element."""
    s, batch, out = op.sizes, x.shape[0], tuple(op.sizes["out"])
    wanted = batch * math.prod(out)
    if s["params"]:
        width = out[-1] if s["params"] % out[-1] == 0 else 1
        table = x.graph.draw("table", s["params"]).reshape(-1, width)
        found = x.graph.add("Gather", table, _draw(len(table), wanted // width), axis=0)
        return found.reshape(batch, *out)
    if s["across"] and len(x.shape) > 1:
        rows = x.reshape(batch * x.shape[1], math.prod(x.shape[2:]))
        found = rows.apply("Gather", _draw(rows.shape[0], batch * out[0]), axis=0)
        return found.reshape(batch, out[0] * rows.shape[1]).fit(out)
    if not s["axes"] or max(s["axes"]) + 1 >= len(x.shape):
        flat = x.flatten()
        index = _draw(flat.shape[1], wanted).reshape(batch, math.prod(out))
        return flat.apply("GatherElements", index, axis=1).reshape(batch, *out)
    # Elements along some axes of a sample, which become its first axis.
    rest = [axis for axis in range(len(x.sample)) if axis not in s["axes"]]
    moved = x.transpose(0, *(axis + 1 for axis in (*s["axes"], *rest)))
    places, width = (math.prod(x.sample[axis] for axis in one) for one in (s["axes"], rest))
    index = _draw(places, max(1, math.prod(out) // width))
    found = moved.reshape(batch, places, width).apply("Gather", index, axis=1)
    return found.fit(out)


def _build_scatter(op: Op, x: Value, *others: Value) -> Value:
    """Add an addition of elements to arbitrary places."""
    target = x.flatten()
    source = (x, *others)[-1].fit((math.prod(op.sizes["source"]),))
    index = _draw(target.shape[1], math.prod(source.shape)).reshape(source.shape)
    out = target.apply("ScatterElements", index, source, axis=1, reduction="add")
    return out.reshape(*x.shape)


def _build_sort(op: Op, x: Value) -> Value:
    """Add a sort of the last axis, or of its largest elements."""
    out = tuple(op.sizes["out"])
    is_part = op.sizes["fn"] == "topk" and out[-1] < x.shape[-1]
    kept = out[-1] if is_part else x.shape[-1]
    # PyTorch sorts upwards, and its topk returns the largest.
    values, _ = x.graph.add_split("TopK", [x, [kept]], 2, axis=-1, largest=int(is_part))
    return values.fit(out)


def _build_copy(op: Op, x: Value) -> Value:
    """Add a copy of the first elements of each sample, or an expansion of the first one.

    ONNX has no views of a part.
    """
    out = tuple(op.sizes["out"])
    if op.kind == "slice" or math.prod(out) <= math.prod(x.sample):
        return x.flatten().fit(out)
    return x.take_first(len(out)).apply("Expand", (x.shape[0], *out))


def _build_view(op: Op, x: Value) -> Value:
    out = find_kind(op.kind).out_shape(op.sizes, x.sample)
    if math.prod(out) != math.prod(x.sample):
        raise NetError(f"a tensor of shape {x.sample} cannot be viewed as {out}")
    return x.reshape(x.shape[0], *out)


def _fill(shape: Shape, value: float) -> Array:
    return np.full(shape, value, dtype="float32")


def _draw(limit: int, count: int) -> Array:
    # Always the same: which elements are moved does not matter.
    return np.random.default_rng(0).integers(0, limit, count)


OP_BUILDERS: dict[str, Callable[..., Value]] = {
    **{f"conv{dims}d": _build_conv for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": _build_conv for dims in (1, 2, 3)},
    **dict.fromkeys(_GATES, _build_recurrent),
    "linear": _build_linear, "grouped_linear": _build_grouped_linear, "matmul": _build_matmul,
    "embedding": _build_embedding, "embedding_bag": _build_embedding_bag,
    "attention": _build_attention, "sdpa": _build_sdpa, "batch_norm": _build_batch_norm,
    "layer_norm": _build_layer_norm, "group_norm": _build_group_norm, "rms_norm": _build_rms_norm,
    "elementwise": _build_function, "pool": _build_pool, "dropout": lambda op, x: x,
    "index": _build_index, "scatter": _build_scatter, "sort": _build_sort, "slice": _build_copy,
    "gradient_copy": _build_copy, "flatten": _build_view, "view": _build_view,
    "permute": lambda op, x: x.transpose(0, *(axis + 1 for axis in op.sizes["order"])),
    "last": lambda op, x: x.apply("Gather", x.shape[1] - 1, axis=1),
}  # fmt: skip
