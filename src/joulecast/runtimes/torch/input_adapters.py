"""Reshape, cut or repeat tensors so that a layer that is built alone accepts them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from joulecast.records import Layer
from joulecast.runtimes.input_fits import InputFit, Shape, plan_input_fits
from joulecast.runtimes.torch.memory_format import is_channels_last

Adapter = Callable[[torch.Tensor], torch.Tensor]


def choose_adapters(layer: Layer, shapes: Sequence[Shape]) -> tuple[Adapter | None, ...]:
    """Return an adapter for each input of a layer; empty where no input needs one.

    Args:
        layer: The layer that reads the inputs.
        shapes: Sample shapes of the inputs.
    """
    fit = fit_shape_channels_last if layer.channels_last else fit_shape
    adapters: list[Adapter | None] = []
    for how, shape in plan_input_fits(layer, shapes):
        if how is InputFit.ELEMENTS:
            adapters.append(partial(fit, shape=shape))
        elif how is InputFit.ONE_ELEMENT:
            adapters.append(partial(take_one_element, dims=len(shape)))
        else:
            adapters.append(None)
    return tuple(adapters)


def fit_shape(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Return the elements of ``x`` in another sample shape, cut or repeated to fit.

    Elements are taken in memory order, because a view that was lost on reading copied nothing.
    """
    wanted = math.prod(shape)
    if x.is_contiguous() and x.numel() == x.shape[0] * wanted:
        # One view, as the module made it: more calls would count as its host time.
        return x.view(x.shape[0], *shape)
    flat = (x.movedim(1, -1) if is_channels_last(x) else x).flatten(1)
    if wanted > flat.shape[1]:
        flat = flat.repeat(1, -(-wanted // flat.shape[1]))
    return flat[:, :wanted].reshape(x.shape[0], *shape)


def fit_shape_channels_last(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Return the elements of ``x`` as an image of this shape in channels-last format."""
    return fit_shape(x, (*shape[1:], shape[0])).movedim(-1, 1)


def fit_channels(inputs: Sequence[torch.Tensor], wanted: int) -> tuple[torch.Tensor, ...]:
    """Return inputs that have ``wanted`` channels in total: some are repeated or cut.

    Repeated inputs are detached: slicing their gradient would cost more than the concatenation.
    """
    fitted: list[torch.Tensor] = []
    inputs = [x for x in inputs if x.shape[1]]
    for x in itertools.chain(inputs, itertools.cycle([x.detach() for x in inputs])):
        if not wanted:
            break
        fitted.append(x if x.shape[1] <= wanted else x[:, :wanted])
        wanted -= fitted[-1].shape[1]
    return tuple(fitted)


def take_one_element(x: torch.Tensor, dims: int) -> torch.Tensor:
    """Return one element per sample, to be broadcast over ``dims`` axes."""
    return x.flatten(1)[:, :1].reshape(x.shape[0], *([1] * dims))
