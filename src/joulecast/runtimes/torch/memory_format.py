"""Detect and set the channels-last memory format of images, volumes and weights.

A tensor's format is read from its strides, as PyTorch does when it chooses a kernel. A tensor is
channels-last because it was converted, because it was permuted from a tensor whose last axis holds
the channels, or because an operator propagated the format of its input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._prims_common import suggest_memory_format
from torch.utils import _pytree as pytree

from joulecast.records import Network

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(x: torch.Tensor) -> bool:
    """Return whether a batch of images or volumes, or a weight, is in channels-last format."""
    return x.dim() in _FORMATS and suggest_memory_format(x) in _FORMATS.values()


def is_transposed(x: torch.Tensor, shape: tuple[int, ...]) -> bool:
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

    A batch that is transposed already is returned as it is.
    """
    if x.dim() < 3 or not x.is_floating_point() or is_transposed(x, tuple(x.shape[1:])):
        return x
    *lead, rows, columns = x.shape
    return x.reshape(*lead, columns, rows).transpose(-1, -2)


def to_channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor in channels-last format."""
    return x.to(memory_format=_FORMATS[x.dim()])


def convert_weights_to_channels_last(module: nn.Module) -> None:
    """Convert the weights of a convolution, as ``module.to(memory_format=...)`` does."""
    for weight in module.parameters():
        if weight.dim() in _FORMATS:
            weight.data = to_channels_last(weight.data)


def match_memory_format(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return ``x`` in the memory format of another tensor with as many axes."""
    return to_channels_last(x) if is_channels_last(other) else x


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


def find_image(values: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return the batch of images or volumes of this sample shape among a function's arguments.

    Other arguments may be weights or tensors that are broadcast. Where inputs are concatenated none
    of them has the shape, and the first image is returned.
    """
    axes = len(shape) + 1
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    images = [x for x in tensors if x.dim() == axes in _FORMATS and x.is_floating_point()]
    matching = [x for x in images if tuple(x.shape[1:]) == shape]
    return next(iter(matching or images), None)
