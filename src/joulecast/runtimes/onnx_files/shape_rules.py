"""Derive the shapes that an ONNX operator returns: one rule per operator.

A rule returns the shapes of the outputs, of all or of the first ones. Shapes that depend on the
data are None, and so are those of operators without a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from joulecast.kinds import Shape
from joulecast.runtimes.onnx_files import moving_shapes
from joulecast.runtimes.onnx_files.constant_folding import normalise_axis
from joulecast.runtimes.onnx_files.graph_values import GraphCall
from joulecast.runtimes.onnx_files.model_file import GraphError
from joulecast.runtimes.onnx_files.moving_shapes import Shapes, broadcast_shapes
from joulecast.runtimes.onnx_files.window_shapes import (
    count_transposed_space,
    count_windows,
)
from joulecast.units import format_shape

ShapeRule = Callable[[GraphCall], Shapes]

MICROSOFT = "com.microsoft::"
"""Domain of the operators that ONNX Runtime's optimiser writes."""
RECURRENT = ("LSTM", "GRU", "RNN", f"{MICROSOFT}DynamicQuantizeLSTM")


def has_shape_rule(op: str) -> bool:
    """Return whether the shapes of an operator's results are known."""
    return op in SHAPE_RULES


def infer_shapes(call: GraphCall) -> list[Shape | None]:
    """Return the shape of every output of a call; None for those that are not known.

    Raises:
        GraphError: Its inputs do not fit together.
    """
    rule = SHAPE_RULES.get(call.op)
    found = list(rule(call)) if rule else []
    count = len(call.node.outputs)
    return (found + [None] * count)[:count]


def multiply_shapes(left: Shape, right: Shape) -> Shape:
    """Return the shape of a matrix product.

    Raises:
        GraphError: The shapes do not fit together.
    """
    if not left or not right:
        raise GraphError("multiplies a matrix by a number")
    rows = left if len(left) > 1 else (1, *left)
    columns = right if len(right) > 1 else (*right, 1)
    if rows[-1] != columns[-2]:
        raise GraphError(
            f"multiplies shapes that do not fit: {format_shape(left)} and {format_shape(right)}"
        )
    shape = (*broadcast_shapes(rows[:-2], columns[:-2]), rows[-2], columns[-1])
    if len(left) == 1:
        shape = (*shape[:-2], shape[-1])
    return shape[:-1] if len(right) == 1 else shape


def _same(call: GraphCall) -> Shapes:
    return [call.shape(0)] * len(call.node.outputs)


def _first(call: GraphCall) -> Shapes:
    return [call.shape(0)]


def _broadcast(call: GraphCall) -> Shapes:
    return [broadcast_shapes(*(value.dims for value in call.inputs if value is not None))]


def _convolve(call: GraphCall, weight: int = 1) -> Shapes:
    image, kernel = call.shape(0), call.shape(weight)
    groups = call.attribute("group", 1)
    if len(image) != len(kernel) or len(image) < 3 or image[1] != kernel[1] * groups:
        raise GraphError(f"convolves {format_shape(image)} with a kernel of {format_shape(kernel)}")
    return [(image[0], kernel[0], *count_windows(call, image[2:], kernel[2:]))]


def _convolve_transposed(call: GraphCall) -> Shapes:
    image, kernel = call.shape(0), call.shape(1)
    if len(image) != len(kernel) or len(image) < 3 or image[1] != kernel[0]:
        raise GraphError(f"convolves {format_shape(image)} with a kernel of {format_shape(kernel)}")
    channels = kernel[1] * call.attribute("group", 1)
    return [(image[0], channels, *count_transposed_space(call, image[2:], kernel[2:]))]


def _multiply_general(call: GraphCall, right: int = 1) -> Shapes:
    a, b = call.shape(0), call.shape(right)
    a = tuple(reversed(a)) if call.attribute("transA", 0) else a
    b = tuple(reversed(b)) if call.attribute("transB", 0) else b
    if len(a) != 2 or len(b) != 2:
        raise GraphError(f"multiplies {format_shape(a)} by {format_shape(b)}, not two matrices")
    return [multiply_shapes(a, b)]


def _multiply_fused(call: GraphCall) -> Shapes:
    a, b = call.shape(0), call.shape(1)
    a = (*a[:-2], a[-1], a[-2]) if call.attribute("transA", 0) else a
    b = (*b[:-2], b[-1], b[-2]) if call.attribute("transB", 0) else b
    return [multiply_shapes(a, b)]


def _pool(call: GraphCall) -> Shapes:
    image = call.shape(0)
    kernel = call.attribute("kernel_shape", ())
    if len(kernel) != len(image) - 2:
        raise GraphError(f"pools {format_shape(image)} with a kernel of {format_shape(kernel)}")
    pooled = (*image[:2], *count_windows(call, image[2:], kernel))
    return [pooled] * len(call.node.outputs)


def _pool_globally(call: GraphCall) -> Shapes:
    image = call.shape(0)
    return [(*image[:2], *([1] * (len(image) - 2)))]


def list_reduced_axes(call: GraphCall) -> tuple[int, ...]:
    """Return the axes that a reduction runs over, counted from the front."""
    rank = len(call.shape(0))
    axes = call.numbers(1, "axes")
    if not axes:
        return () if call.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(normalise_axis(axis, rank) for axis in axes))


def _reduce(call: GraphCall) -> Shapes:
    shape, axes = call.shape(0), list_reduced_axes(call)
    if call.attribute("keepdims", 1):
        return [tuple(1 if i in axes else size for i, size in enumerate(shape))]
    return [tuple(size for i, size in enumerate(shape) if i not in axes)]


def _reduce_to_index(call: GraphCall) -> Shapes:
    shape = call.shape(0)
    axis = normalise_axis(call.attribute("axis", 0), len(shape))
    kept = (1,) if call.attribute("keepdims", 1) else ()
    return [(*shape[:axis], *kept, *shape[axis + 1 :])]


def _take_largest(call: GraphCall) -> Shapes:
    shape = call.shape(0)
    axis = normalise_axis(call.attribute("axis", -1), len(shape))
    given = call.numbers(1, "k") if len(call.inputs) > 1 else (call.attribute("k", 1),)
    count = int((given or (1,))[0])
    return [(*shape[:axis], count, *shape[axis + 1 :])] * 2


def _encode_one_hot(call: GraphCall) -> Shapes:
    shape = call.shape(0)
    depth = int((call.numbers(1, "depth") or (1,))[0])
    axis = call.attribute("axis", -1) % (len(shape) + 1)
    return [(*shape[:axis], depth, *shape[axis:])]


def _fill(call: GraphCall) -> Shapes:
    shape = call.numbers(0, "shape")
    return [tuple(int(size) for size in shape or ())]


def _count_range(call: GraphCall) -> Shapes:
    start, limit, step = ((call.numbers(i, "range") or (0,))[0] for i in range(3))
    return [(max(0, math.ceil((limit - start) / step)) if step else 0,)]


def _ask_shape(call: GraphCall) -> Shapes:
    rank = len(call.shape(0))
    return [(len(range(rank)[call.attribute("start", 0) : call.attribute("end", rank)]),)]


def _recur(call: GraphCall) -> Shapes:
    """Return the shapes of all outputs and of the final states of a recurrent layer."""
    tokens, batch, _ = call.shape(0)
    directions, hidden = call.shape(2)[0], find_hidden_size(call)
    if call.attribute("layout", 0):
        tokens, batch = batch, tokens
        state: Shape = (batch, directions, hidden)
        return [(batch, tokens, directions, hidden), state, state]
    state = (directions, batch, hidden)
    return [(tokens, directions, batch, hidden), state, state]


def find_hidden_size(call: GraphCall) -> int:
    """Return how many features a recurrent layer computes for each token."""
    recurrent = call.shape(2)
    # ONNX Runtime transposes the weights that it quantises.
    return recurrent[1] if call.op.startswith(MICROSOFT) else recurrent[-1]


def _contract(call: GraphCall) -> Shapes:
    """Return the shape of an ``Einsum``; None for those with an ellipsis."""
    left, arrow, right = call.attribute("equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in left or not arrow or len(terms) != len(call.inputs):
        return [None]
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        for letter, size in zip(term, call.shape(index), strict=True):
            if sizes.setdefault(letter, size) not in (size, 1):
                raise GraphError(f"contracts axes of {sizes[letter]} and {size}")
            sizes[letter] = max(sizes[letter], size)
    return [tuple(sizes[letter] for letter in right)]


def _attend(call: GraphCall) -> Shapes:
    """Return the shape of attention: that of the queries, with the features of the values."""
    query = call.shape(0)
    value = call.get(2)
    if value is None or value.shape is None or len(query) != len(value.shape):
        return [query]
    if len(query) == 4 or not call.attribute("q_num_heads"):
        return [(*query[:-1], value.shape[-1])]
    head_dim = value.shape[-1] // max(1, call.attribute("kv_num_heads", 1))
    return [(*query[:-1], call.attribute("q_num_heads") * head_dim)]


def _attend_projected(call: GraphCall) -> Shapes:
    """Return the shape of attention that projects its input to three times the width first."""
    return [(*call.shape(0)[:-1], call.shape(1)[-1] // 3)]


def _sample_grid(call: GraphCall) -> Shapes:
    return [(*call.shape(0)[:2], *call.shape(1)[1:-1])]


_UNARY = (
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "HardSwish", "HardSigmoid",
    "Softplus", "Softsign", "Softmax", "LogSoftmax", "Hardmax", "Mish", "Gelu", "Swish", "Erf",
    "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Sin",
    "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Not",
    "BitwiseNot", "IsNaN", "IsInf", "Clip", "ThresholdedRelu", "Shrink", "Identity", "Cast",
    "CastLike", "CumSum", "Trilu", "EyeLike", "LpNormalization", "MeanVarianceNormalization",
    "LRN", "InstanceNormalization", "GroupNormalization", "RMSNormalization", "ScatterND",
    "ScatterElements", "Scatter", "Dropout", "QuantizeLinear", "DequantizeLinear",
    "ReverseSequence", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "RotaryEmbedding",
)  # fmt: skip
_BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean", "And", "Or", "Xor",
    "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Where", "PRelu", "BitShift",
    "BitwiseAnd", "BitwiseOr", "BitwiseXor",
)  # fmt: skip
_REDUCTIONS = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip

SHAPE_RULES: dict[str, ShapeRule] = {
    **dict.fromkeys(_UNARY, _same),
    **dict.fromkeys(_BINARY, _broadcast),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduce_to_index),
    "BatchNormalization": _first,
    "LayerNormalization": _first,
    "Conv": _convolve,
    "ConvInteger": _convolve,
    "QLinearConv": lambda call: _convolve(call, weight=3),
    "ConvTranspose": _convolve_transposed,
    "Gemm": _multiply_general,
    "MatMul": lambda call: [multiply_shapes(call.shape(0), call.shape(1))],
    "MatMulInteger": lambda call: [multiply_shapes(call.shape(0), call.shape(1))],
    "QLinearMatMul": lambda call: [multiply_shapes(call.shape(0), call.shape(3))],
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _pool_globally),
    "Reshape": moving_shapes.reshape,
    "Flatten": moving_shapes.flatten,
    "Transpose": moving_shapes.transpose,
    "Squeeze": moving_shapes.squeeze,
    "Unsqueeze": moving_shapes.unsqueeze,
    "Expand": moving_shapes.expand,
    "Tile": moving_shapes.tile,
    "Concat": moving_shapes.concatenate,
    "Split": moving_shapes.split,
    "Slice": moving_shapes.slice_axes,
    "Gather": moving_shapes.gather,
    "GatherElements": lambda call: [call.shape(1)],
    "GatherND": moving_shapes.gather_nd,
    "Pad": moving_shapes.pad,
    **dict.fromkeys(("Resize", "Upsample"), moving_shapes.resize),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), moving_shapes.move_depth),
    "TopK": _take_largest,
    "OneHot": _encode_one_hot,
    "ConstantOfShape": _fill,
    "Range": _count_range,
    "Shape": _ask_shape,
    "Size": lambda call: [()],
    **dict.fromkeys(RECURRENT, _recur),
    "Einsum": _contract,
    "Attention": _attend,
    "GridSample": _sample_grid,
    "DynamicQuantizeLinear": lambda call: [call.shape(0), (), ()],
    **{
        f"{MICROSOFT}{op}": _first
        for op in (
            "Gelu", "FastGelu", "BiasGelu", "QuickGelu", "SimplifiedLayerNormalization",
            "RotaryEmbedding",
            "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax",
        )
    },
    "SimplifiedLayerNormalization": _first,
    f"{MICROSOFT}SkipLayerNormalization": _same,
    f"{MICROSOFT}SkipSimplifiedLayerNormalization": _same,
    f"{MICROSOFT}Attention": _attend_projected,
    f"{MICROSOFT}MatMulNBits": lambda call: [(*call.shape(0)[:-1], call.attribute("N", 1))],
    f"{MICROSOFT}FusedConv": _convolve,
    f"{MICROSOFT}FusedGemm": _multiply_general,
    f"{MICROSOFT}FusedMatMul": _multiply_fused,
    f"{MICROSOFT}MultiHeadAttention": _attend,
    f"{MICROSOFT}DynamicQuantizeMatMul": lambda call: [
        multiply_shapes(call.shape(0), call.shape(1))
    ],
    f"{MICROSOFT}MatMulIntegerToFloat": lambda call: [
        multiply_shapes(call.shape(0), call.shape(1))
    ],
    f"{MICROSOFT}QGemm": lambda call: _multiply_general(call, right=3),
    f"{MICROSOFT}QLinearAdd": lambda call: [broadcast_shapes(call.shape(0), call.shape(3))],
    f"{MICROSOFT}QLinearMul": lambda call: [broadcast_shapes(call.shape(0), call.shape(3))],
    f"{MICROSOFT}QLinearGlobalAveragePool": _pool_globally,
    f"{MICROSOFT}QLinearAveragePool": _pool,
}  # fmt: skip
