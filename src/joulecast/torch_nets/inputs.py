"""Arrange the tensors that a module is called on: batch size, shape and memory format.

A tensor's memory format is read from its strides, as PyTorch does when it chooses a kernel. A
tensor is channels-last because it was converted, because it was permuted from a tensor whose last
axis holds the channels, or because an operator propagated the format of its input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_leaves, tree_map_only

from joulecast.operators import Shape
from joulecast.operators.building import InputFit, plan_input_fits
from joulecast.records import Layer, Network
from joulecast.system.errors import NetError

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

Adapter = Callable[[torch.Tensor], torch.Tensor]


def call_net(net: nn.Module, inputs: Any) -> Any:
    """Call a module on one tensor, a tuple of positional or a dict of named inputs."""
    if isinstance(inputs, dict):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, (tuple, list)) else net(inputs)


def list_tensors(values: Any) -> list[torch.Tensor]:
    """Return all tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def find_first_tensor(inputs: Any) -> torch.Tensor | None:
    """Return the first tensor, whose first axis is the batch; None if there is none."""
    return next(iter(list_tensors(inputs)), None)


def find_batch(inputs: Any) -> int:
    """Return the batch size of inputs.

    Raises:
        NetError: They contain no tensor with a batch axis.
    """
    first = find_first_tensor(inputs)
    if first is None or not first.shape:
        raise NetError("the example input needs a tensor whose first axis is the batch")
    return int(first.shape[0])


def resize_batch(inputs: Any, batch: int) -> Any:
    """Return inputs with another batch size: samples are repeated or dropped.

    Only tensors as long as the first one hold samples; masks and positions are not changed.
    """
    first = find_first_tensor(inputs)
    length = () if first is None else first.shape[:1]

    def resize(value: torch.Tensor) -> torch.Tensor:
        if not value.shape or value.shape[:1] != length or not value.shape[0]:
            return value
        if value.device.type == "meta":
            resized = value.new_empty(batch, *value.shape[1:])
        else:
            resized = value[torch.arange(batch) % value.shape[0]]
        return to_channels_last(resized) if is_channels_last(value) else resized

    return tree_map_only(torch.Tensor, resize, inputs)


# ---------------------------------------------------------------------------------------------
# Memory format


def is_channels_last(x: torch.Tensor) -> bool:
    """Return whether a batch of images or volumes, or a weight, is in channels-last format."""
    return x.dim() in _FORMATS and suggest_memory_format(x) in _FORMATS.values()


def to_channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor in channels-last format."""
    return x.to(memory_format=_FORMATS[x.dim()])


def convert_weights_to_channels_last(module: nn.Module) -> None:
    """Convert the weights of a convolution, as ``module.to(memory_format=...)`` does."""
    for weight in module.parameters():
        if weight.dim() in _FORMATS:
            weight.data = to_channels_last(weight.data)


def is_transposed(x: torch.Tensor, shape: Shape) -> bool:
    """Return whether the last axis of a batch of such samples is not the innermost in memory.

    ``x.transpose(1, 2)`` is an example; an image in channels-last format is not.
    """
    if x.dim() != len(shape) + 1 or len(shape) < 2 or not x.is_floating_point():
        return False
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    is_inner = x.shape[-1] == 1 or x.stride(-1) == min((s for s in strides if s), default=0)
    return not is_inner and not is_channels_last(x)


def view_transposed(x: torch.Tensor) -> torch.Tensor:
    """Return the elements of a batch as if it had been transposed to its shape; nothing is copied.

    A batch that is transposed already is returned unchanged.
    """
    if x.dim() < 3 or not x.is_floating_point() or is_transposed(x, tuple(x.shape[1:])):
        return x
    *lead, rows, columns = x.shape
    return x.reshape(*lead, columns, rows).transpose(-1, -2)


def format_input(x: torch.Tensor, network: Network) -> torch.Tensor:
    """Return a batch in the memory format that the network's first layers expect."""
    readers = (
        layer for i, layer in enumerate(network.layers) if layer.reads and layer.reads[0] > i
    )
    expected = x.dim() in _FORMATS and any(layer.channels_last for layer in readers)
    return to_channels_last(x) if expected else x


def make_empty_input(network: Network, batch: int) -> torch.Tensor:
    """Return an uninitialised batch for a network, in the expected memory format."""
    dtype = torch.long if network.input.vocabulary else torch.float32
    return format_input(torch.empty(batch, *network.input.shape, dtype=dtype), network)


def find_image(values: Any, shape: Shape) -> torch.Tensor | None:
    """Return the batch of images or volumes of this sample shape among a function's arguments.

    Other arguments may be weights or tensors that are broadcast. Where inputs are concatenated none
    of them has the shape, and the first image is returned.
    """
    axes = len(shape) + 1
    images = [x for x in list_tensors(values) if x.dim() == axes in _FORMATS]
    images = [x for x in images if x.is_floating_point()]
    matching = [x for x in images if tuple(x.shape[1:]) == shape]
    return next(iter(matching or images), None)


# ---------------------------------------------------------------------------------------------
# Shapes that a layer which is built alone accepts


def choose_adapters(layer: Layer, shapes: Sequence[Shape]) -> tuple[Adapter | None, ...]:
    """Return an adapter for each input of a layer; empty where no input needs one."""
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
