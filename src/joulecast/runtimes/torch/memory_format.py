"""How images lie in memory: channels first, as is usual, or innermost, as other kernels want them.

What counts is what the framework itself looks at when it chooses a kernel: strides, not flags. A
tensor lies channels last because somebody converted it, because it was permuted from one that holds
its channels innermost, or because whatever made it handed on the layout that it was given.
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
    """Whether a batch of images or volumes, or a weight, has its channels innermost in memory."""
    return x.dim() in _FORMATS and suggest_memory_format(x) in _FORMATS.values()


def to_channels_last(x: torch.Tensor) -> torch.Tensor:
    """The same tensor with its channels innermost in memory."""
    return x.to(memory_format=_FORMATS[x.dim()])


def convert_weights_to_channels_last(module: nn.Module) -> None:
    """Put the weights of a convolution as they lie in a net that was converted as a whole."""
    for weight in module.parameters():
        if weight.dim() in _FORMATS:
            weight.data = to_channels_last(weight.data)


def match_memory_format(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The same tensor in the layout of another one of as many axes."""
    return to_channels_last(x) if is_channels_last(other) else x


def format_input(x: torch.Tensor, network: Network) -> torch.Tensor:
    """A batch as the layers of a network that read it first want it to lie."""
    readers = (
        layer for i, layer in enumerate(network.layers) if layer.reads and layer.reads[0] > i
    )
    wanted = x.dim() in _FORMATS and any(layer.channels_last for layer in readers)
    return to_channels_last(x) if wanted else x


def make_empty_input(network: Network, batch: int) -> torch.Tensor:
    """A batch for a network that holds no numbers yet."""
    dtype = torch.long if network.input.vocabulary else torch.float32
    return format_input(torch.empty(batch, *network.input.shape, dtype=dtype), network)


def find_image(values: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The batch of images or volumes of this shape among the arguments of a function.

    Beside it may stand a weight, or what is spread over it; where inputs are joined none has the
    shape, and the first image stands for all.
    """
    axes = len(shape) + 1
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    images = [x for x in tensors if x.dim() == axes in _FORMATS and x.is_floating_point()]
    whole = [x for x in images if tuple(x.shape[1:]) == shape]
    return next(iter(whole or images), None)
