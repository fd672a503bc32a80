"""Define kinds that pass over elements: norms, activations, pooling, dropout, views and indexing.

They multiply no matrices. Those that gather, scatter, sort or slice take several kernels each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from joulecast.operators.kind import (
    NO_WORK,
    REQUIRED,
    WEIGHT_BYTES,
    Kind,
    OutputPrecision,
    Shape,
    Work,
    WorkContext,
    WorkRule,
    copy_input,
    do_no_work,
    gives_full,
    keep_shape,
    make_elementwise_rules,
    read_shape,
)
from joulecast.records import Sizes
from joulecast.system.errors import InputError

# Functions that autocast runs in full precision.
_FULL_FUNCTIONS = ("softmax", "log_softmax", "softplus", "cross_entropy")
# Their other operand may be a parameter or another tensor that no layer computes.
_ARITHMETIC = ("add", "sub", "mul", "div")
# Functions that only move elements, and so do their gradients.
APPENDS = ("append", "append strided")
"""Functions that append to a cache of keys or values, which they copy; the second one appends what
does not lie together in memory, such as a part of a projection to queries, keys and values."""
_COPIES = ("copy", "pad", "roll", "reshape", "mean", "sum", "expand", "repeat")
# A norm over fewer features leaves the layer before it nothing to learn.
_LEAST_FEATURES = 4


def define_batch_norm() -> Kind:
    """Return the row of a batch norm."""
    return _define_norm({"affine": 1}, _channel_params, channel_axis=0)


def define_group_norm() -> Kind:
    """Return the row of a group norm; an instance norm has as many groups as channels."""
    row = _define_norm({"groups": REQUIRED, "affine": 1}, _channel_params, channel_axis=0)
    return replace(row, width_divisor="groups", autocast=gives_full)


def define_layer_norm() -> Kind:
    """Return the row of a layer norm over the last ``dims`` axes."""

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        size = math.prod(shape[len(shape) - s["dims"] :])
        return ((size, size) if s["bias"] else (size,)) if s["affine"] else ()

    row = _define_norm({"dims": 1, "affine": 1, "bias": 1}, params, channel_axis=-1)
    return replace(row, least_width=_LEAST_FEATURES, autocast=gives_full)


def define_rms_norm() -> Kind:
    """Return the row of an RMS norm: fused, or ``spelled`` out in elementary operators.

    Under autocast PyTorch has no fused kernel for it: weights are in full precision, and the input
    need not be.
    """
    fused, spelled = make_elementwise_rules(2, 3, 1), make_elementwise_rules(9, 18, 3)

    def is_fused(s: Sizes, c: WorkContext) -> bool:
        # Networks stored by early versions do not have this size.
        return not s.get("spelled", 0) and c.item_bytes >= WEIGHT_BYTES

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        if is_fused(s, c):
            return fused[0](s, shape, c)
        return replace(spelled[0](s, shape, c), launches=7)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        if is_fused(s, c):
            return fused[1](s, shape, c)
        work = spelled[1](s, shape, c)
        return replace(work, launches=14) if work.launches else work

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        return (shape[-1],) if s["affine"] else ()

    row = _define_norm({"affine": 1, "spelled": 0}, params, channel_axis=-1)
    return replace(
        row,
        forward=forward,
        backward=backward,
        least_width=_LEAST_FEATURES,
        autocast=gives_full,
    )


def define_elementwise() -> Kind:
    """Return the row of activations, sums, products and reductions: functions of elements."""

    def autocast(s: Sizes) -> OutputPrecision:
        return "full" if s["fn"] in _FULL_FUNCTIONS or count_operand(s) else "input"

    return Kind(
        {
            "fn": REQUIRED,
            "axes": (),
            "inputs": 1,
            "passes": 1,
            "params": 0,
            "constant": None,
            "out": None,
        },
        read_shape,
        _reduce_shape,
        _count_function,
        _count_function_gradients,
        lambda s, shape: (s["params"],) if s["params"] else (),
        widths=("channels",),
        input_widths=("channels",),
        autocast=autocast,
        can_be_in_tail=True,
        is_function=True,
        reduces_positions=lambda s: bool(s["axes"]),
    )


def count_operand(sizes: Sizes) -> int:
    """Return how many elements its operand has that no layer computes; 0 if it has none.

    A scale that is learned, a mask or a table of rotations: it is in full precision, and so is the
    result.
    """
    if sizes.get("fn") not in _ARITHMETIC:
        return 0
    return int(sizes.get("params", 0) or sizes.get("constant", 0))


def _reduce_shape(s: Sizes, shape: Shape) -> Shape:
    if s["axes"]:
        return tuple(size for i, size in enumerate(shape) if i not in s["axes"])
    return keep_shape(s, shape)


def _count_function(s: Sizes, shape: Shape, c: WorkContext) -> Work:
    if s["fn"] == "cross_entropy":
        # Log-probabilities, of which one per row is selected.
        size = float(c.batch * math.prod(shape) * c.item_bytes)
        return Work(0.0, 2.0 * size, 2, size)
    inputs = c.batch * math.prod(shape) * s["inputs"]
    outputs = c.batch * math.prod(_reduce_shape(s, shape))
    # All that was cached before is copied too.
    inputs = outputs if s["fn"] in APPENDS else inputs
    size = float(inputs + outputs) * c.item_bytes
    kept = 0 if s["fn"] == "add" else outputs * s["passes"]
    return Work(0.0, size * s["passes"], s["passes"], float(kept * c.item_bytes))


def _count_function_gradients(s: Sizes, shape: Shape, c: WorkContext) -> Work:
    size = c.batch * math.prod(shape) * c.item_bytes
    fn, count, work = s["fn"], s["inputs"], NO_WORK
    if c.trains and s["params"] and fn in _ARITHMETIC:
        # The gradient of a parameter is summed over all positions; that of a factor is multiplied
        # by the input first.
        work = Work(0.0, float(size), 1) if fn in ("add", "sub") else Work(0.0, 4.0 * size, 2)
    if not c.input_grad or fn == "add":
        return work  # both inputs of a sum get its gradient unchanged
    if fn == "cross_entropy":
        # Zeros are written for the gradient of the log-probabilities, then two are read.
        return work + Work(0.0, 4.0 * size, 3)
    if fn == "mul":
        # The gradient of each input is a product of its own.
        moved = float((count + 1) * size * count)
        return work + Work(0.0, moved * s["passes"], count * s["passes"])
    moved = float(c.batch * math.prod(_reduce_shape(s, shape)) * c.item_bytes)
    moved += size if fn in _COPIES or fn.startswith("concat") else 2 * count * size
    return work + Work(0.0, moved * s["passes"], s["passes"])


def define_pool() -> Kind:
    """Return the row of maximum and average pooling, by windows or to a given size."""

    def fill_sizes(sizes: dict[str, Any]) -> dict[str, Any]:
        if sizes["fn"].startswith("adaptive"):
            return sizes
        stride = sizes["stride"] or sizes["kernel"]
        padding = sizes["padding"] or (0,) * len(sizes["kernel"])
        return {**sizes, "stride": stride, "padding": padding}

    def out_shape(s: Sizes, shape: Shape) -> Shape:
        if s["fn"].startswith("adaptive"):
            return (shape[0], *s["kernel"])
        space = []
        for i, size in enumerate(shape[1:]):
            reach = size + 2 * s["padding"][i] - s["kernel"][i]
            rounded = -(-reach // s["stride"][i]) if s["ceil"] else reach // s["stride"][i]
            # A window that would begin in the padding behind the input is left out.
            outside = s["ceil"] and rounded * s["stride"][i] >= size + s["padding"][i]
            space.append(rounded + (0 if outside else 1))
        if min(space) < 1:
            raise InputError(
                f"pooling of {s['kernel']} does not fit on {tuple(shape[1:])}: give a larger input"
            )
        return (shape[0], *space)

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        input_bytes = c.batch * math.prod(shape) * c.item_bytes
        output_bytes = c.batch * math.prod(out_shape(s, shape)) * c.item_bytes
        kept = 2 * output_bytes if "max" in s["fn"] else 0  # the index of each maximum
        return Work(0.0, float(input_bytes + output_bytes), 1, float(kept))

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        input_bytes = c.batch * math.prod(shape) * c.item_bytes
        output_bytes = c.batch * math.prod(out_shape(s, shape)) * c.item_bytes
        if not (c.input_grad or c.trains):
            return NO_WORK
        passes = 2 if "max" in s["fn"] else 1
        return Work(0.0, float(passes * input_bytes + 2 * output_bytes), 1)

    return Kind(
        {"fn": REQUIRED, "kernel": REQUIRED, "stride": (), "padding": (), "ceil": 0},
        read_shape,
        out_shape,
        forward,
        backward,
        fill_sizes=fill_sizes,
        widths=("channels",),
        input_widths=("channels",),
        channel_axis=0,
        can_be_in_tail=True,
        reduces_positions=lambda s: True,
    )


def define_dropout() -> Kind:
    """Return the row of dropout, which writes a mask of one byte per element."""
    forward, backward = make_elementwise_rules(2.25, 2.25, 0.25)
    return Kind(
        {"p": REQUIRED},
        read_shape,
        keep_shape,
        forward,
        backward,
        widths=("channels",),
        input_widths=("channels",),
        can_be_in_tail=True,
        only_trains=True,
    )


def define_flatten() -> Kind:
    """Return the row of a flatten to one axis."""
    return replace(_define_view(lambda s, shape: (math.prod(shape),), {}), flattens=True)


def define_view() -> Kind:
    """Return the row of a view in the shape ``out``."""
    return _define_view(lambda s, shape: tuple(s["out"]), {"out": REQUIRED})


def define_permute() -> Kind:
    """Return the row of a permutation of axes to ``order``."""

    def out_shape(s: Sizes, shape: Shape) -> Shape:
        return tuple(shape[axis] for axis in s["order"])

    return replace(_define_view(out_shape, {"order": REQUIRED}), permutes_axes=True)


def define_last() -> Kind:
    """Return the row of a selection of the last element of the first axis."""
    return replace(_define_view(lambda s, shape: shape[1:], {}), selects_elements=True)


def _define_norm(
    sizes: Mapping[str, Any],
    params: Callable[[Sizes, Shape], tuple[int, ...]],
    channel_axis: int,
) -> Kind:
    """Return the row of a norm: two passes forward, three backward."""
    forward, backward = make_elementwise_rules(2, 3, 1)
    return Kind(
        sizes,
        read_shape,
        keep_shape,
        forward,
        backward,
        params,
        widths=("channels",),
        input_widths=("channels",),
        channel_axis=channel_axis,
        can_be_in_tail=True,
        copy_transposed=copy_input,
    )


def _channel_params(s: Sizes, shape: Shape) -> tuple[int, ...]:
    """Return a weight and a bias for each channel."""
    return (shape[0], shape[0]) if s["affine"] else ()


def _define_view(out_shape: Callable[[Sizes, Shape], Shape], sizes: Mapping[str, Any]) -> Kind:
    return Kind(
        sizes,
        read_shape,
        out_shape,
        do_no_work,
        do_no_work,
        can_be_in_tail=True,
        is_view=True,
    )


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

    sizes = {"fn": REQUIRED, "out": REQUIRED, "axes": (), "across": 0, "params": 0}
    kind = _define_move(sizes, forward, backward)
    return replace(kind, params=lambda s, shape: (s["params"],) if s["params"] else ())


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

    kind = _define_move({"fn": REQUIRED, "source": REQUIRED, "copies": 0}, forward, backward)
    return replace(kind, out_shape=lambda s, shape: shape)


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

    return _define_move({"fn": REQUIRED, "out": REQUIRED}, forward, backward)


def define_slice() -> Kind:
    """Return the row of a slice: a view whose gradient is padded with zeros.

    A tensor is sliced more than once, so the padded gradients are also summed. With ``params`` it
    is a stack of as many weights, from which one is taken at a time, as by a loop over experts.
    """
    kind = _define_costly_view(lambda elements, out: 4 * elements + 2 * out, launches=3)
    return replace(
        kind,
        sizes={**kind.sizes, "params": None},
        params=lambda s, shape: (s["params"],) if s.get("params") else (),
    )


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
        if params := s.get("params", 0):
            moved = count_moved(params, math.prod(s["out"]) * c.batch)
            return Work(0.0, float(moved * WEIGHT_BYTES), launches) if c.trains else NO_WORK
        if not c.input_grad:
            return NO_WORK
        moved = count_moved(math.prod(shape), math.prod(s["out"]))
        return Work(0.0, float(c.batch * moved * c.item_bytes), launches)

    return _define_move({"out": REQUIRED}, do_no_work, backward)


def _define_move(sizes: Mapping[str, Any], forward: WorkRule, backward: WorkRule) -> Kind:
    """Return the row of a function that moves elements to a tensor of the shape ``out``."""
    return Kind(
        sizes,
        read_shape,
        lambda s, shape: tuple(s["out"]),
        forward,
        backward,
        channel_axis=-1,
        is_function=True,
    )
