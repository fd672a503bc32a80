"""Define kinds that pass over elements: norms, activations, pooling, dropout and views."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from joulecast.errors import InputError
from joulecast.kinds.kind import REQUIRED, Kind, OutputPrecision, gives_full
from joulecast.kinds.work import NO_WORK, WEIGHT_BYTES, Shape, Work, WorkContext
from joulecast.kinds.work_rules import (
    copy_input,
    do_no_work,
    keep_shape,
    make_elementwise_rules,
    read_shape,
)
from joulecast.records import Sizes

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
        return _count_loss_forward(shape, c)
    inputs = c.batch * math.prod(shape) * s["inputs"]
    outputs = c.batch * math.prod(_reduce_shape(s, shape))
    # All that was cached before is copied too.
    inputs = outputs if s["fn"] in APPENDS else inputs
    size = float(inputs + outputs) * c.item_bytes
    kept = 0 if s["fn"] == "add" else outputs * s["passes"]
    return Work(0.0, size * s["passes"], s["passes"], float(kept * c.item_bytes))


def _count_function_gradients(s: Sizes, shape: Shape, c: WorkContext) -> Work:
    work = _count_operand_gradient(s, shape, c)
    return work + _count_input_gradient(s, shape, c) if c.input_grad else work


def _count_input_gradient(s: Sizes, shape: Shape, c: WorkContext) -> Work:
    size = c.batch * math.prod(shape) * c.item_bytes
    outputs = c.batch * math.prod(_reduce_shape(s, shape)) * c.item_bytes
    fn, count = s["fn"], s["inputs"]
    if fn == "cross_entropy":
        # Zeros are written for the gradient of the log-probabilities, then two are read.
        return Work(0.0, 4.0 * size, 3)
    if fn == "add":
        return NO_WORK  # both inputs of a sum get its gradient unchanged
    if fn == "mul":
        # The gradient of each input is a product of its own.
        moved = float((count + 1) * size * count)
        return Work(0.0, moved * s["passes"], count * s["passes"])
    if fn in _COPIES or fn.startswith("concat"):
        return Work(0.0, float(size + outputs) * s["passes"], s["passes"])
    return Work(0.0, float(2 * count * size + outputs) * s["passes"], s["passes"])


def _count_operand_gradient(s: Sizes, shape: Shape, c: WorkContext) -> Work:
    """Return the work of the gradient of a parameter that is added or multiplied."""
    if not c.trains or not s["params"] or s["fn"] not in _ARITHMETIC:
        return NO_WORK
    size = c.batch * math.prod(shape) * c.item_bytes
    # The gradient is summed over all positions; that of a factor is multiplied by the input first.
    return Work(0.0, float(size), 1) if s["fn"] in ("add", "sub") else Work(0.0, 4.0 * size, 2)


def _count_loss_forward(shape: Shape, c: WorkContext) -> Work:
    """Return the work of log-probabilities, of which one per row is selected."""
    size = float(c.batch * math.prod(shape) * c.item_bytes)
    return Work(0.0, 2.0 * size, 2, size)


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
