"""Rules that several rows share: contractions, passes over elements, views."""

from __future__ import annotations

import math
from collections.abc import Callable

from joulecast.errors import InputError
from joulecast.kinds.work import NO_WORK, Context, Shape, Work, WorkRule
from joulecast.records import Sizes


def stays(sizes: Sizes, shape: Shape) -> Shape:
    """The shape as it is, or as the size ``out`` says."""
    return tuple(sizes["out"]) if "out" in sizes else shape


def own_shape(sizes: Sizes) -> Shape:
    """The shape of an operator that stands alone."""
    try:
        return tuple(sizes["shape"])
    except KeyError:
        raise InputError("an operator that stands alone needs the size 'shape'") from None


def contraction(
    flops: Callable[[int, Shape, Shape], float],
    out_shape: Callable[[Sizes, Shape], Shape],
    params: Callable[[Sizes, Shape], tuple[int, ...]],
) -> tuple[WorkRule, WorkRule]:
    """Forward and backward of an operator that multiplies its input with a weight.

    ``flops`` is for one sample, from the weight's elements and both shapes; each of the two
    gradients takes as many again.
    """

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        result, weights = out_shape(s, shape), params(s, shape)
        inside = c.batch * math.prod(shape) * c.item_bytes
        outside = c.batch * math.prod(result) * c.item_bytes
        moved = inside + outside + sum(weights) * c.item_bytes
        return Work(c.batch * flops(weights[0], shape, result), moved, 1, inside)

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        result = out_shape(s, shape)
        weight, *rest = params(s, shape)
        inside = c.batch * math.prod(shape) * c.item_bytes
        outside = c.batch * math.prod(result) * c.item_bytes
        gradients = c.input_grad + c.trains
        biases = rest[:1] if c.trains else []
        return Work(
            gradients * c.batch * flops(weight, shape, result),
            gradients * (inside + outside + weight * c.item_bytes)
            + sum(outside + bias * c.item_bytes for bias in biases),
            gradients + len(biases),
        )

    return forward, backward


def pointwise(
    forward_moves: float, backward_moves: float, kept: float
) -> tuple[WorkRule, WorkRule]:
    """An operator that passes over its input; moves and kept are in elements per input element."""

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        size = c.batch * math.prod(shape) * c.item_bytes
        return Work(0.0, size * forward_moves, 1, size * kept)

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        size = c.batch * math.prod(shape) * c.item_bytes
        return Work(0.0, size * backward_moves, 1) if c.input_grad or c.trains else NO_WORK

    return forward, backward


def free(s: Sizes, shape: Shape, c: Context) -> Work:
    """No work at all."""
    return NO_WORK
