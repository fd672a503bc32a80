"""Derive the shapes of ONNX operators that move elements, or only describe them differently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from joulecast.kinds import Shape
from joulecast.runtimes.onnx_files.constant_folding import normalise_axis, resolve_slices
from joulecast.runtimes.onnx_files.graph_values import GraphCall
from joulecast.runtimes.onnx_files.model_file import GraphError
from joulecast.units import format_shape

Shapes = Sequence[Shape | None]


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that tensors of these shapes are broadcast to.

    Raises:
        GraphError: They do not fit together.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    found = []
    for sizes in zip(*padded, strict=True):
        different = {size for size in sizes if size != 1}
        if len(different) > 1:
            shown = " and ".join(format_shape(shape) for shape in shapes)
            raise GraphError(f"combines shapes that do not fit: {shown}")
        found.append(different.pop() if different else 1)
    return tuple(found)


def reshape(call: GraphCall) -> Shapes:
    """Return the shape after ``Reshape``."""
    old, wanted = call.shape(0), call.numbers(1, "shape")
    if wanted is None:
        raise GraphError("has no shape to reshape to")
    keeps = not call.attribute("allowzero", 0)
    sizes = [
        old[axis] if size == 0 and keeps and axis < len(old) else size
        for axis, size in enumerate(wanted)
    ]
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known > 0:
        sizes[sizes.index(-1)] = math.prod(old) // known
    if min(sizes, default=1) < 0 or math.prod(sizes) != math.prod(old):
        shown = format_shape(tuple(wanted)) or "()"
        raise GraphError(f"reshapes {format_shape(old) or '()'} to {shown}, which does not fit")
    return [tuple(sizes)]


def flatten(call: GraphCall) -> Shapes:
    """Return the shape after ``Flatten``."""
    shape = call.shape(0)
    axis = call.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [(math.prod(shape[:axis]), math.prod(shape[axis:]))]


def list_permutation(call: GraphCall) -> tuple[int, ...]:
    """Return the order of axes of a ``Transpose``."""
    rank = len(call.shape(0))
    order = call.attribute("perm", tuple(reversed(range(rank))))
    if sorted(order) != list(range(rank)):
        raise GraphError(f"transposes {rank} axes to the order {list(order)}")
    return tuple(order)


def transpose(call: GraphCall) -> Shapes:
    """Return the shape after ``Transpose``."""
    shape = call.shape(0)
    return [tuple(shape[axis] for axis in list_permutation(call))]


def squeeze(call: GraphCall) -> Shapes:
    """Return the shape after ``Squeeze``."""
    shape = call.shape(0)
    given = call.numbers(1, "axes")
    if given is None:
        return [tuple(size for size in shape if size != 1)]
    axes = {normalise_axis(axis, len(shape)) for axis in given}
    if any(shape[axis] != 1 for axis in axes):
        raise GraphError(f"squeezes axes {sorted(axes)} of {format_shape(shape)}")
    return [tuple(size for axis, size in enumerate(shape) if axis not in axes)]


def unsqueeze(call: GraphCall) -> Shapes:
    """Return the shape after ``Unsqueeze``."""
    shape = call.shape(0)
    given = call.numbers(1, "axes") or ()
    rank = len(shape) + len(given)
    axes = {normalise_axis(axis, rank) for axis in given}
    rest = iter(shape)
    if len(axes) != len(given):
        raise GraphError(f"inserts an axis twice: {list(given)}")
    return [tuple(1 if axis in axes else next(rest) for axis in range(rank))]


def expand(call: GraphCall) -> Shapes:
    """Return the shape after ``Expand``."""
    wanted = call.numbers(1, "shape") or ()
    return [broadcast_shapes(call.shape(0), tuple(wanted))]


def tile(call: GraphCall) -> Shapes:
    """Return the shape after ``Tile``."""
    shape, repeats = call.shape(0), call.numbers(1, "repeats") or ()
    return [tuple(size * count for size, count in zip(shape, repeats, strict=True))]


def concatenate(call: GraphCall) -> Shapes:
    """Return the shape after ``Concat``."""
    shapes = [value.dims for value in call.inputs if value is not None]
    if not shapes:
        raise GraphError("has no inputs")
    axis = normalise_axis(call.attribute("axis", 0), len(shapes[0]))
    for shape in shapes:
        fits = len(shape) == len(shapes[0])
        if not fits or any(
            a != b for i, (a, b) in enumerate(zip(shape, shapes[0], strict=True)) if i != axis
        ):
            shown = ", ".join(format_shape(one) for one in shapes[:4])
            raise GraphError(f"concatenates shapes that do not fit: {shown}")
    joined = sum(shape[axis] for shape in shapes)
    return [(*shapes[0][:axis], joined, *shapes[0][axis + 1 :])]


def split(call: GraphCall) -> Shapes:
    """Return the shapes of the parts of a ``Split``."""
    shape, count = call.shape(0), len(call.node.outputs)
    axis = normalise_axis(call.attribute("axis", 0), len(shape))
    sizes = call.numbers(1, "split")
    if sizes is None:
        each = -(-shape[axis] // count)
        sizes = (each,) * (count - 1) + (shape[axis] - each * (count - 1),)
    if sum(sizes) != shape[axis] or min(sizes, default=0) < 0 or len(sizes) != count:
        raise GraphError(f"splits an axis of {shape[axis]} into {list(sizes)}")
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def slice_axes(call: GraphCall) -> Shapes:
    """Return the shape after ``Slice``."""
    shape = list(call.shape(0))
    for axis, (_, _, _, count) in resolve_slices(call).items():
        shape[axis] = count
    return [tuple(shape)]


def gather(call: GraphCall) -> Shapes:
    """Return the shape after ``Gather``."""
    shape = call.shape(0)
    axis = normalise_axis(call.attribute("axis", 0), len(shape))
    return [(*shape[:axis], *call.shape(1), *shape[axis + 1 :])]


def gather_nd(call: GraphCall) -> Shapes:
    """Return the shape after ``GatherND``."""
    shape, indices = call.shape(0), call.shape(1)
    batch = call.attribute("batch_dims", 0)
    return [(*indices[:-1], *shape[batch + indices[-1] :])]


def pad(call: GraphCall) -> Shapes:
    """Return the shape after ``Pad``."""
    shape, pads = call.shape(0), call.numbers(1, "pads")
    axes = call.numbers(3, "axes") or tuple(range(len(shape)))
    if pads is None or len(pads) != 2 * len(axes):
        raise GraphError(f"pads {format_shape(shape)} by {list(pads or ())}")
    found = list(shape)
    for position, axis in enumerate(axes):
        place = normalise_axis(axis, len(shape))
        found[place] += pads[position] + pads[position + len(axes)]
    return [tuple(found)]


def resize(call: GraphCall) -> Shapes:
    """Return the shape after ``Resize`` and ``Upsample``."""
    shape = call.shape(0)
    scales, sizes = _find_resize_factors(call)
    axes = call.attribute("axes", tuple(range(len(shape))))
    found = list(shape)
    for position, axis in enumerate(axes):
        place = normalise_axis(axis, len(shape))
        if sizes:
            found[place] = int(sizes[position])
        elif scales:
            found[place] = math.floor(shape[place] * scales[position])
    return [tuple(found)]


def _find_resize_factors(call: GraphCall) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the scales or the sizes of a ``Resize``, whose inputs changed between versions."""
    sizes = call.get(3)
    if sizes is not None and sizes.numbers:
        return (), sizes.numbers
    for index in (2, 1):
        scales = call.get(index)
        if scales is not None and scales.numbers and len(scales.numbers) == len(call.shape(0)):
            return scales.numbers, ()
    if call.attribute("scales"):
        return call.attribute("scales"), ()
    raise GraphError("resizes by a factor that depends on the data")


def move_depth(call: GraphCall) -> Shapes:
    """Return the shape after ``DepthToSpace`` and ``SpaceToDepth``."""
    batch, channels, height, width = call.shape(0)
    block = call.attribute("blocksize", 1)
    if call.op == "DepthToSpace":
        return [(batch, channels // block**2, height * block, width * block)]
    return [(batch, channels * block**2, height // block, width // block)]
