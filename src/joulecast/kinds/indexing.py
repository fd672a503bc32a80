"""Define kinds that move elements by index: gathering, scattering, sorting and slicing.

They compute nothing, but they move bytes in forward and backward, and each takes several kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from joulecast.kinds.kind import REQUIRED, Kind
from joulecast.kinds.work import NO_WORK, Shape, Work, WorkContext
from joulecast.kinds.work_rules import read_shape
from joulecast.records import Sizes

_INDEX_BYTES = 8
# Kernels that PyTorch launches on a GPU for the gradient of ``x[indices]``: zeros, linear indices,
# a radix sort that brings equal ones together, their sum.
_INDEX_BACKWARD_LAUNCHES = 10
# A radix sort: keys and positions are read and written in several passes.
_SORT_PASSES, _SORT_LAUNCHES = 4, 6


def define_index() -> Kind:
    """Return the row of a selection of elements by index tensors, as ``x[:, rows, columns]``.

    ``axes`` are the axes of a sample that the indices run over; with ``across`` they run over the
    samples too, as where tokens of a batch are sorted by expert. Without axes, each element has an
    index, as in ``gather``.
    """

    def index_elements(s: Sizes, c: WorkContext) -> float:
        selected = c.batch * math.prod(s["out"])
        if not s["axes"] or "shape" not in s:
            return float(selected)
        rest = [size for axis, size in enumerate(s["shape"]) if axis not in s["axes"]]
        indices = float(selected / max(1, math.prod(rest)))
        return indices if s["across"] else indices / c.batch

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        selected = c.batch * math.prod(s["out"]) * c.item_bytes
        indices = index_elements(s, c) * _INDEX_BYTES
        return Work(0.0, 2.0 * selected + indices, 1, indices)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        if not (c.input_grad or (c.trains and s["params"])):
            return NO_WORK
        zeros = c.batch * math.prod(shape) * c.item_bytes
        selected = c.batch * math.prod(s["out"]) * c.item_bytes
        launches = _INDEX_BACKWARD_LAUNCHES if s["axes"] else 2
        return Work(0.0, zeros + 3.0 * selected + index_elements(s, c) * _INDEX_BYTES, launches)

    return Kind(
        {"fn": REQUIRED, "out": REQUIRED, "axes": (), "across": 0, "params": 0},
        read_shape,
        lambda s, shape: tuple(s["out"]),
        forward,
        backward,
        lambda s, shape: (s["params"],) if s["params"] else (),
        channel_axis=-1,
        is_function=True,
    )


def define_scatter() -> Kind:
    """Return the row of an addition or assignment of elements of shape ``source`` by index."""

    def moved_bytes(s: Sizes, c: WorkContext) -> float:
        return float(c.batch * math.prod(s["source"]) * (3 * c.item_bytes + _INDEX_BYTES))

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        copied = 2.0 * c.batch * math.prod(shape) * c.item_bytes * s["copies"]
        kept = float(c.batch * math.prod(s["source"]) * _INDEX_BYTES)
        return Work(0.0, moved_bytes(s, c) + copied, 1 + s["copies"], kept)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        return Work(0.0, moved_bytes(s, c), 1) if c.input_grad else NO_WORK

    return Kind(
        {"fn": REQUIRED, "source": REQUIRED, "copies": 0},
        read_shape,
        lambda s, shape: shape,
        forward,
        backward,
        channel_axis=-1,
        is_function=True,
    )


def define_sort() -> Kind:
    """Return the row of a sort along the last axis, or of the largest elements of it."""

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        elements, kept = c.batch * math.prod(shape), c.batch * math.prod(s["out"])
        passes = 1 if elements != kept else _SORT_PASSES
        moved = passes * (elements + kept) * c.item_bytes + kept * _INDEX_BYTES
        return Work(0.0, float(moved), _SORT_LAUNCHES, float(kept * _INDEX_BYTES))

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        if not c.input_grad:
            return NO_WORK
        elements, kept = c.batch * math.prod(shape), c.batch * math.prod(s["out"])
        moved = (elements + 3 * kept) * c.item_bytes + kept * _INDEX_BYTES
        return Work(0.0, float(moved), 2)

    return Kind(
        {"fn": REQUIRED, "out": REQUIRED},
        read_shape,
        lambda s, shape: tuple(s["out"]),
        forward,
        backward,
        channel_axis=-1,
        is_function=True,
    )


def define_slice() -> Kind:
    """Return the row of a slice: a view whose gradient is padded with zeros.

    A tensor is sliced more than once, so the padded gradients are also summed.
    """
    return _define_costly_view(lambda elements, out: 4 * elements + 2 * out, launches=3)


def define_gradient_copy() -> Kind:
    """Return the row of a view whose gradient is a copy.

    Parts that a tensor was split into are concatenated, an expanded axis is summed, and a gradient
    whose memory has another order is copied before it is reshaped.
    """
    return _define_costly_view(lambda elements, out: elements + max(elements, out), launches=1)


def _define_costly_view(count_moved: Callable[[int, int], int], launches: int) -> Kind:
    """Return the row of a view whose gradient moves elements.

    Args:
        count_moved: Returns how many, given the elements of an input and an output sample.
        launches: Kernels of the gradient.
    """

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        if not c.input_grad:
            return NO_WORK
        moved = count_moved(math.prod(shape), math.prod(s["out"]))
        return Work(0.0, float(c.batch * moved * c.item_bytes), launches)

    return Kind(
        {"out": REQUIRED},
        read_shape,
        lambda s, shape: tuple(s["out"]),
        lambda s, shape, c: NO_WORK,
        backward,
        channel_axis=-1,
        is_function=True,
    )
