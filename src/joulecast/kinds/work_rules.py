"""Provide rules for shapes and work that several kinds share."""

from __future__ import annotations

import math
from collections.abc import Callable

from joulecast.errors import InputError
from joulecast.kinds.work import NO_WORK, Shape, Work, WorkContext, WorkRule
from joulecast.records import Sizes


def make_contraction_rules(
    flops: Callable[[int, Shape, Shape], float],
    out_shape: Callable[[Sizes, Shape], Shape],
    params: Callable[[Sizes, Shape], tuple[int, ...]],
) -> tuple[WorkRule, WorkRule]:
    """Return forward and backward rules of an operator that multiplies its input by a weight.

    ``flops`` counts one sample, from the weight's elements and both shapes; each of the two
    gradients takes as many again.
    """

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        result, weights = out_shape(s, shape), params(s, shape)
        input_bytes = c.batch * math.prod(shape) * c.item_bytes
        output_bytes = c.batch * math.prod(result) * c.item_bytes
        moved = input_bytes + output_bytes + sum(weights) * c.item_bytes
        return Work(c.batch * flops(weights[0], shape, result), moved, 1, input_bytes)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        result = out_shape(s, shape)
        weight, *rest = params(s, shape)
        input_bytes = c.batch * math.prod(shape) * c.item_bytes
        output_bytes = c.batch * math.prod(result) * c.item_bytes
        gradients = c.input_grad + c.trains
        biases = rest[:1] if c.trains else []
        return Work(
            gradients * c.batch * flops(weight, shape, result),
            gradients * (input_bytes + output_bytes + weight * c.item_bytes)
            + sum(output_bytes + bias * c.item_bytes for bias in biases),
            gradients + len(biases),
        )

    return forward, backward


def make_elementwise_rules(
    forward_moves: float, backward_moves: float, kept: float
) -> tuple[WorkRule, WorkRule]:
    """Return forward and backward rules of an operator that passes over its input.

    Args:
        forward_moves: Elements read and written per input element in the forward pass.
        backward_moves: The same in the backward pass.
        kept: Elements kept for the backward pass per input element.
    """

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        size = c.batch * math.prod(shape) * c.item_bytes
        return Work(0.0, size * forward_moves, 1, size * kept)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        size = c.batch * math.prod(shape) * c.item_bytes
        return Work(0.0, size * backward_moves, 1) if c.input_grad or c.trains else NO_WORK

    return forward, backward


def do_no_work(s: Sizes, shape: Shape, c: WorkContext) -> Work:
    """Return the work of a view: none."""
    return NO_WORK


def copy_input(s: Sizes, shape: Shape, c: WorkContext) -> Work:
    """Return the work of copying the input, which is then kept in its place."""
    return Work(0.0, 2.0 * c.batch * math.prod(shape) * c.item_bytes, 1)


def keep_shape(sizes: Sizes, shape: Shape) -> Shape:
    """Return the input shape, or the size ``out`` if there is one."""
    return tuple(sizes["out"]) if "out" in sizes else shape


def read_shape(sizes: Sizes) -> Shape:
    """Return the size ``shape``, which only an operator that begins a layer has.

    Raises:
        InputError: The size is missing.
    """
    try:
        return tuple(sizes["shape"])
    except KeyError:
        raise InputError("an operator that begins a layer needs the size 'shape'") from None
