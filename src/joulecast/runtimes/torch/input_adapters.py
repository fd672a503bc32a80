"""Reshape, cut or repeat tensors so that a layer that is built alone accepts them.

Reading a module loses views that no kind describes. Its layers and blocks are still measured alone,
so their inputs are given the expected shape here. Layers that are connected as they were in the
module need no adapter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from joulecast.kinds import find_kind, input_shape
from joulecast.records import Layer
from joulecast.runtimes.torch.memory_format import is_channels_last

Shape = tuple[int, ...]
Adapter = Callable[[torch.Tensor], torch.Tensor]


def choose_adapters(layer: Layer, shapes: Sequence[Shape]) -> tuple[Adapter | None, ...]:
    """Return an adapter for each input of a layer; empty where no input needs one.

    Args:
        layer: The layer that reads the inputs.
        shapes: Sample shapes of the inputs.
    """
    kind = find_kind(layer.kind)
    if kind.packs_inputs or layer.join == "concat":
        return ()
    expected = [input_shape(layer)] * len(shapes)
    if kind.second_shape and len(shapes) > 1:
        expected[1] = kind.second_shape(layer.sizes)
    is_only_input = len(shapes) == 1 or kind.second_shape is not None
    adapters = tuple(
        _choose_adapter(layer, shape, wanted, is_only_input)
        for shape, wanted in zip(shapes, expected, strict=True)
    )
    return adapters if any(adapters) else ()


def concat_channels_to_fit(layer: Layer, shapes: Sequence[Shape]) -> int:
    """Return the channel count that concatenated inputs must be fitted to; 0 where they add up.

    A layer that concatenates inputs of different widths gets equal ones when it runs alone.
    """
    expected = input_shape(layer)
    is_flat = str(layer.sizes.get("fn", "")).startswith("concat along")
    if layer.join != "concat" or is_flat or any(shape[1:] != expected[1:] for shape in shapes):
        return 0
    return 0 if sum(shape[0] for shape in shapes) in (0, expected[0]) else expected[0]


def fit_shape(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Return the elements of ``x`` in another sample shape, cut or repeated to fit.

    Elements are taken in memory order, because a view that was lost on reading copied nothing.
    """
    flat = (x.movedim(1, -1) if is_channels_last(x) else x).flatten(1)
    wanted = math.prod(shape)
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


def _choose_adapter(
    layer: Layer, shape: Shape, expected: Shape, is_only_input: bool
) -> Adapter | None:
    """Return what turns one shape into the expected one; several inputs may also be broadcast."""
    if shape == expected or (not is_only_input and _broadcasts(shape, expected)):
        return None
    if is_only_input or math.prod(shape) >= math.prod(expected):
        fit = fit_shape_channels_last if layer.channels_last else fit_shape
        return lambda x: fit(x, expected)
    # Fewer elements than expected beside another input: the module broadcast them.
    return lambda x: take_one_element(x, len(expected))


def _broadcasts(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all(
        size in (1, other) for size, other in zip(shape, expected, strict=True)
    )
