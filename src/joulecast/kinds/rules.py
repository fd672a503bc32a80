"""Rules that several rows share: contractions, passes over elements, views."""

from __future__ import annotations

import math
from typing import Callable, Tuple

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
    flops: Callable[[Sizes, Shape], float],
    out_shape: Callable[[Sizes, Shape], Shape],
    params: Callable[[Sizes, Shape], Tuple[int, ...]],
) -> Tuple[WorkRule, WorkRule]:
    """Forward and backward of an operator that multiplies its input with a weight.

    ``flops`` is for one sample; each of the two gradients takes as many again.
    """

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        moved = c.batch * (math.prod(shape) + math.prod(out_shape(s, shape))) * c.item_bytes
        weights = sum(params(s, shape)) * c.item_bytes
        return Work(
            c.batch * flops(s, shape), moved + weights, 1, c.batch * math.prod(shape) * c.item_bytes
        )

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        inside = c.batch * math.prod(shape) * c.item_bytes
        outside = c.batch * math.prod(out_shape(s, shape)) * c.item_bytes
        weight, *rest = (size * c.item_bytes for size in params(s, shape))
        work = NO_WORK
        if c.input_grad:
            work += Work(c.batch * flops(s, shape), outside + weight + inside, 1)
        if c.trains:
            work += Work(c.batch * flops(s, shape), outside + inside + weight, 1)
            if rest:
                work += Work(0.0, outside + rest[0], 1)
        return work

    return forward, backward


def pointwise(
    forward_moves: float, backward_moves: float, kept: float
) -> Tuple[WorkRule, WorkRule]:
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
