"""Add functions of elements to an ONNX graph: activations, sums, products and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from joulecast.kinds import count_operand, find_kind
from joulecast.records import Op
from joulecast.runtimes.input_fits import find_operand_shape
from joulecast.runtimes.onnx.graph import OnnxGraph, Shape, Value, WeightSource

Function = Callable[[OnnxGraph, Value], Value]

_ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}


def build_function(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    """Add a function; one that ONNX lacks becomes as many passes over the elements."""
    s, x = op.sizes, inputs[0]
    out = find_kind(op.kind).out_shape(s, x.sample)
    if s["fn"].startswith("concat along"):
        whole = find_kind(op.kind).out_shape(s, tuple(s.get("shape", x.sample)))
        return _concat_flat(graph, inputs, whole)
    if count_operand(s) and s["inputs"] == 1:
        operand = weights("operand", find_operand_shape(count_operand(s), x.sample), 1.0)
        names = [x, graph.add_weight(operand)]
        return graph.add(_ARITHMETIC[s["fn"]], names, x.shape)
    if s["fn"] in JOINS and len(inputs) > 1:
        return JOINS[s["fn"]](graph, inputs)
    if s["fn"] == "mean" and s["axes"]:
        return _reduce_axes(graph, "ReduceMean", x, s["axes"])
    if s["fn"] in REDUCTIONS and (found := _reduce_to(graph, REDUCTIONS[s["fn"]], x, out)):
        return found
    if s["fn"] in FUNCTIONS and out == x.sample and len(inputs) == 1:
        return FUNCTIONS[s["fn"]](graph, x)
    if s["fn"] in _RESIZES and len(out) == len(x.sample) and out[0] == x.sample[0]:
        return _resize(graph, x, out, _RESIZES[s["fn"]])
    if s["fn"] == "repeat_interleave" and (found := _repeat(graph, x, out)):
        return found
    return _pass_over(graph, inputs, s["passes"], out)


def join_by(graph: OnnxGraph, op_type: str, inputs: Sequence[Value]) -> Value:
    """Add a sum or product of inputs, which may be broadcast."""
    x = inputs[0]
    for other in inputs[1:]:
        x = graph.add(op_type, [x, other], _broadcast(x.shape, other.shape))
    return x


def concat_channels(graph: OnnxGraph, inputs: Sequence[Value]) -> Value:
    """Add a concatenation along the channels."""
    batch, _, *space = inputs[0].shape
    channels = sum(x.shape[1] for x in inputs)
    return graph.add("Concat", inputs, (batch, channels, *space), axis=1)


def _apply(op_type: str, **attributes: float) -> Function:
    return lambda graph, x: graph.add(op_type, [x], x.shape, **attributes)


def _apply_number(op_type: str, number: float) -> Function:
    return lambda graph, x: graph.add(op_type, [x, graph.add_numbers(number)], x.shape)


def _clip(low: float, high: float) -> Function:
    return lambda graph, x: graph.add(
        "Clip", [x, graph.add_numbers(low), graph.add_numbers(high)], x.shape
    )


def _multiply_by_sigmoid(scale: float) -> Function:
    def build(graph: OnnxGraph, x: Value) -> Value:
        inner = x if scale == 1.0 else graph.add("Mul", [x, graph.add_numbers(scale)], x.shape)
        return graph.add("Mul", [x, graph.add("Sigmoid", [inner], x.shape)], x.shape)

    return build


def _build_new_gelu(graph: OnnxGraph, x: Value) -> Value:
    """Add GELU with the tanh approximation as model libraries spell it."""

    def compute(op_type: str, *values: Value | float) -> Value:
        names = [one if isinstance(one, Value) else graph.add_numbers(one) for one in values]
        return graph.add(op_type, names, x.shape)

    cube = compute("Mul", compute("Pow", x, 3.0), 0.044715)
    inner = compute("Mul", compute("Add", x, cube), math.sqrt(2.0 / math.pi))
    return compute("Mul", compute("Mul", x, 0.5), compute("Add", compute("Tanh", inner), 1.0))


def _build_glu_log_sigmoid(graph: OnnxGraph, x: Value) -> Value:
    return graph.add("Log", [graph.add("Sigmoid", [x], x.shape)], x.shape)


def _build_rsqrt(graph: OnnxGraph, x: Value) -> Value:
    return graph.add("Reciprocal", [graph.add("Sqrt", [x], x.shape)], x.shape)


def _build_log1p(graph: OnnxGraph, x: Value) -> Value:
    return graph.add("Log", [graph.add("Add", [x, graph.add_numbers(1.0)], x.shape)], x.shape)


def _build_cumsum(graph: OnnxGraph, x: Value) -> Value:
    return graph.add("CumSum", [x, graph.add_integers(len(x.shape) - 1)], x.shape)


FUNCTIONS: dict[str, Function] = {
    "relu": _apply("Relu"),
    "relu6": _clip(0.0, 6.0),
    "gelu": _apply("Gelu"),
    "newgeluactivation": _build_new_gelu,
    "quickgeluactivation": _multiply_by_sigmoid(1.702),
    "silu": _multiply_by_sigmoid(1.0),
    "sigmoid": _apply("Sigmoid"),
    "tanh": _apply("Tanh"),
    "leaky_relu": _apply("LeakyRelu", alpha=0.01),
    "elu": _apply("Elu"),
    "celu": _apply("Celu"),
    "selu": _apply("Selu"),
    "hardswish": _apply("HardSwish"),
    "hardsigmoid": _apply("HardSigmoid", alpha=1.0 / 6.0, beta=0.5),
    "softplus": _apply("Softplus"),
    "mish": _apply("Mish"),
    "hardtanh": _clip(-1.0, 1.0),
    "clamp": _clip(-1.0, 1.0),
    "neg": _apply("Neg"),
    "copy": _apply("Identity"),
    "add": _apply_number("Add", 1.0),
    "mul": _apply_number("Mul", 0.5),
    "pow": _apply_number("Pow", 2.0),
    "square": _apply_number("Pow", 2.0),
    "cumsum": _build_cumsum,
    "softmax": _apply("Softmax", axis=-1),
    "log_softmax": _apply("LogSoftmax", axis=-1),
    "logsigmoid": _build_glu_log_sigmoid,
    "exp": _apply("Exp"),
    "log": _apply("Log"),
    "log1p": _build_log1p,
    "sqrt": _apply("Sqrt"),
    "rsqrt": _build_rsqrt,
    "abs": _apply("Abs"),
    "sin": _apply("Sin"),
    "cos": _apply("Cos"),
    "erf": _apply("Erf"),
}
"""Functions that keep the shape of their only input."""

JOINS: dict[str, Callable[[OnnxGraph, Sequence[Value]], Value]] = {
    "add": lambda graph, inputs: join_by(graph, "Add", inputs),
    "mul": lambda graph, inputs: join_by(graph, "Mul", inputs),
    "concat": concat_channels,
}

REDUCTIONS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "logsumexp": "ReduceLogSumExp",
    "norm": "ReduceL2",
}
"""Functions that reduce an axis, or all of them."""

_RESIZES = {
    "interpolate nearest": "nearest",
    "interpolate linear": "linear",
    "interpolate bilinear": "linear",
    "interpolate bicubic": "cubic",
    "interpolate trilinear": "linear",
}


def _reduce_axes(graph: OnnxGraph, op_type: str, x: Value, axes: Sequence[int]) -> Value:
    kept = tuple(size for axis, size in enumerate(x.sample) if axis not in axes)
    numbers = graph.add_integers([axis + 1 for axis in axes])
    return graph.add(op_type, [x, numbers], (x.shape[0], *kept), keepdims=0)


def _reduce_to(graph: OnnxGraph, op_type: str, x: Value, out: Shape) -> Value | None:
    """Add a reduction of the one axis that is missing or 1 in the output, or of all axes."""
    shape = x.sample
    for axis in range(len(shape)):
        is_dropped = out == shape[:axis] + shape[axis + 1 :]
        if is_dropped or out == (*shape[:axis], 1, *shape[axis + 1 :]):
            reduced = _reduce_axes(graph, op_type, x, [axis])
            return graph.reshape(reduced, (x.shape[0], *out))
    if math.prod(out) != 1:
        return None
    reduced = _reduce_axes(graph, op_type, x, range(len(shape)))
    return graph.reshape(reduced, (x.shape[0], *out))


def _resize(graph: OnnxGraph, x: Value, out: Shape, mode: str) -> Value:
    shape = (x.shape[0], *out)
    attributes = {"mode": mode, "cubic_coeff_a": -0.75}
    if mode == "nearest":
        attributes.update(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return graph.add("Resize", [x, "", "", graph.add_integers(shape)], shape, **attributes)


def _repeat(graph: OnnxGraph, x: Value, out: Shape) -> Value | None:
    """Add an expansion that repeats every element of one axis."""
    axes = [axis for axis, size in enumerate(x.sample) if size != out[axis]]
    if len(out) != len(x.sample) or len(axes) != 1:
        return None
    axis = axes[0] + 1
    times = out[axes[0]] // x.shape[axis]
    inner = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
    shape = (*x.shape[: axis + 1], times, *x.shape[axis + 1 :])
    x = graph.reshape(x, inner)
    x = graph.add("Expand", [x, graph.add_integers(shape)], shape)
    return graph.reshape(x, (x.shape[0], *out))


def _pass_over(graph: OnnxGraph, inputs: Sequence[Value], passes: int, out: Shape) -> Value:
    """Add as many passes as a function makes that ONNX lacks: its traffic, not its values."""
    x = join_by(graph, "Add", inputs)
    for _ in range(passes - (len(inputs) > 1)):
        x = graph.add("Mul", [x, graph.add_numbers(0.5)], x.shape)
    return graph.fit(x, out)


def _concat_flat(graph: OnnxGraph, inputs: Sequence[Value], out: Shape) -> Value:
    """Add a concatenation along an axis that the record does not name: the same elements."""
    flat = [graph.reshape(x, (x.shape[0], math.prod(x.sample))) for x in inputs]
    if len(flat) == 1:
        return graph.fit(FUNCTIONS["copy"](graph, flat[0]), out)
    wanted = math.prod(out)
    if sum(x.shape[1] for x in flat) > wanted:
        # The module concatenated only slices of them.
        share = max(1, wanted // len(flat))
        flat = [graph.slice(x, 1, 0, min(share, x.shape[1])) for x in flat]
    size = sum(x.shape[1] for x in flat)
    joined = graph.add("Concat", flat, (flat[0].shape[0], size), axis=1)
    return graph.fit(joined, out)


def _broadcast(first: Shape, second: Shape) -> Shape:
    length = max(len(first), len(second))
    padded = [(1,) * (length - len(one)) + one for one in (first, second)]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))
