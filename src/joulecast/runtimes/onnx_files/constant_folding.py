"""Compute small constants of an ONNX graph: the arithmetic by which exporters derive shapes.

Elements are a flat tuple in row-major order. Only constants of few elements are computed; a larger
one, such as a table of positions, keeps its shape alone.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from joulecast.kinds import Shape
from joulecast.runtimes.onnx_files.graph_values import FLOAT_TYPES, GraphCall
from joulecast.runtimes.onnx_files.model_file import MOST_CONSTANT_ELEMENTS, GraphError

Numbers = tuple[Any, ...]

_LARGEST_NUMBER = 2**63
_LARGEST_EXPONENT = 64


def fold_call(call: GraphCall, shape: Shape) -> Numbers | None:
    """Return the elements of the first output; None if they are many or cannot be computed.

    Args:
        call: A node whose inputs are constants, or one that asks only for a shape.
        shape: The shape of its first output.
    """
    fold = _FOLDS.get(call.op)
    if fold is None or math.prod(shape) > MOST_CONSTANT_ELEMENTS:
        return None
    if call.op not in _READ_SHAPES_ONLY and any(
        value is not None and value.numbers is None for value in call.inputs
    ):
        return None
    try:
        found = fold(call, shape)
    except ArithmeticError:
        return None
    if found is None or len(found) != math.prod(shape):
        return None
    is_sane = all(not isinstance(one, int) or abs(one) <= _LARGEST_NUMBER for one in found)
    return found if is_sane else None


def list_positions(shape: Shape) -> itertools.product[tuple[int, ...]]:
    """Return an iterator over the indices of all elements, in row-major order."""
    return itertools.product(*(range(size) for size in shape))


def count_strides(shape: Shape) -> Shape:
    """Return the elements between neighbours along each axis, in row-major order."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def resolve_slices(call: GraphCall) -> dict[int, tuple[int, int, int, int]]:
    """Return start, stop, step and count of a ``Slice`` by axis."""
    shape = call.shape(0)
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    if starts is None or ends is None:
        raise GraphError("has no starts or ends")
    axes = call.numbers(3, "axes") or tuple(range(len(starts)))
    steps = call.numbers(4, "steps") or (1,) * len(starts)
    found = {}
    for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True):
        axis = normalise_axis(axis, len(shape))
        if not step:
            raise GraphError("has a step of 0")
        first, last, step = slice(start, stop, step).indices(shape[axis])
        found[axis] = (first, last, step, len(range(first, last, step)))
    return found


def normalise_axis(axis: Any, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        GraphError: There is no such axis.
    """
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise GraphError(f"names axis {axis}, but its input has {rank}")
    return axis % rank


def _read(call: GraphCall, index: int) -> Numbers:
    numbers = call.read(index).numbers
    return () if numbers is None else numbers


def _broadcast(call: GraphCall, shape: Shape) -> list[list[Any]]:
    """Return the elements of every input, repeated to a shape."""
    found = []
    for index in range(len(call.inputs)):
        own, numbers = call.shape(index), _read(call, index)
        if own == shape:
            found.append(list(numbers))
            continue
        padded = (1,) * (len(shape) - len(own)) + own
        strides = [
            0 if size == 1 else stride
            for size, stride in zip(padded, count_strides(padded), strict=True)
        ]
        found.append([numbers[_locate(at, strides)] for at in list_positions(shape)])
    return found


def _locate(position: Sequence[int], strides: Sequence[int]) -> int:
    return sum(map(operator.mul, position, strides))


def _elementwise(function: Callable[..., Any]) -> Callable[[GraphCall, Shape], Numbers]:
    def fold(call: GraphCall, shape: Shape) -> Numbers:
        return tuple(map(function, *_broadcast(call, shape)))

    return fold


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return a / b


def _raise_power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > _LARGEST_EXPONENT:
        raise OverflowError
    return base**exponent


def _keep(call: GraphCall, shape: Shape) -> Numbers:
    return _read(call, 0)


def _cast(call: GraphCall, shape: Shape) -> Numbers:
    target = call.attribute("to", 1)
    convert: Callable[[Any], Any] = int
    if target in FLOAT_TYPES:
        convert = float
    elif target == 9:
        convert = bool
    return tuple(convert(one) for one in _read(call, 0))


def _transpose(call: GraphCall, shape: Shape) -> Numbers:
    own = call.shape(0)
    order = call.attribute("perm", tuple(reversed(range(len(own)))))
    strides = count_strides(own)
    moved = [strides[axis] for axis in order]
    numbers = _read(call, 0)
    return tuple(numbers[_locate(at, moved)] for at in list_positions(shape))


def _slice(call: GraphCall, shape: Shape) -> Numbers:
    strides = count_strides(call.shape(0))
    slices, numbers = resolve_slices(call), _read(call, 0)
    found = []
    for at in list_positions(shape):
        place = list(at)
        for axis, (first, _, step, _) in slices.items():
            place[axis] = first + at[axis] * step
        found.append(numbers[_locate(place, strides)])
    return tuple(found)


def _gather(call: GraphCall, shape: Shape) -> Numbers:
    own, indices = call.shape(0), _read(call, 1)
    axis = normalise_axis(call.attribute("axis", 0), len(own))
    strides, numbers = count_strides(own), _read(call, 0)
    found = []
    for before in list_positions(own[:axis]):
        for index in indices:
            for after in list_positions(own[axis + 1 :]):
                place = (*before, normalise_axis(index, own[axis]), *after)
                found.append(numbers[_locate(place, strides)])
    return tuple(found)


def _concat(call: GraphCall, shape: Shape) -> Numbers:
    axis = normalise_axis(call.attribute("axis", 0), len(shape))
    parts = [(call.shape(i), _read(call, i)) for i in range(len(call.inputs))]
    found: list[Any] = []
    for block in range(math.prod(shape[:axis])):
        for own, numbers in parts:
            size = math.prod(own[axis:])
            found += numbers[block * size : (block + 1) * size]
    return tuple(found)


def _expand(call: GraphCall, shape: Shape) -> Numbers:
    return tuple(_broadcast(GraphCall(call.node, call.inputs[:1]), shape)[0])


def _fill(call: GraphCall, shape: Shape) -> Numbers:
    value = call.attribute("value")
    number = value.numbers[0] if value is not None and value.numbers else 0.0
    return (number,) * math.prod(shape)


def _range(call: GraphCall, shape: Shape) -> Numbers:
    start, step = _read(call, 0)[0], _read(call, 2)[0]
    return tuple(start + step * index for index in range(shape[0]))


def _reduce(function: Callable[[Sequence[Any]], Any]) -> Callable[[GraphCall, Shape], Numbers]:
    def fold(call: GraphCall, shape: Shape) -> Numbers | None:
        return (function(_read(call, 0)),) if math.prod(shape) == 1 else None

    return fold  # type: ignore[return-value]


_READ_SHAPES_ONLY = ("Shape", "Size")


def _ask_shape(call: GraphCall, shape: Shape) -> Numbers:
    own = call.shape(0)
    rank = len(own)
    start, end = call.attribute("start", 0), call.attribute("end", rank)
    return own[slice(start, end)]


_FOLDS: dict[str, Callable[[GraphCall, Shape], Numbers | None]] = {
    "Shape": _ask_shape,
    "Size": lambda call, shape: (math.prod(call.shape(0)),),
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"), _keep),
    "Cast": _cast,
    "Transpose": _transpose,
    "Slice": _slice,
    "Gather": _gather,
    "Concat": _concat,
    "Expand": _expand,
    "ConstantOfShape": _fill,
    "Range": _range,
    "Add": _elementwise(operator.add),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul),
    "Div": _elementwise(_divide),
    "Mod": _elementwise(operator.mod),
    "Pow": _elementwise(_raise_power),
    "Equal": _elementwise(operator.eq),
    "Less": _elementwise(operator.lt),
    "Greater": _elementwise(operator.gt),
    "LessOrEqual": _elementwise(operator.le),
    "GreaterOrEqual": _elementwise(operator.ge),
    "And": _elementwise(lambda a, b: bool(a and b)),
    "Or": _elementwise(lambda a, b: bool(a or b)),
    "Not": _elementwise(operator.not_),
    "Where": _elementwise(lambda condition, a, b: a if condition else b),
    "Min": _elementwise(lambda *values: min(values)),
    "Max": _elementwise(lambda *values: max(values)),
    "Neg": _elementwise(operator.neg),
    "Abs": _elementwise(abs),
    "Sqrt": _elementwise(lambda a: math.sqrt(a) if a >= 0 else math.nan),
    "Reciprocal": _elementwise(lambda a: 1 / a),
    "Floor": _elementwise(math.floor),
    "Ceil": _elementwise(math.ceil),
    "ReduceProd": _reduce(math.prod),
    "ReduceSum": _reduce(sum),
    "ReduceMax": _reduce(max),
    "ReduceMin": _reduce(min),
}
