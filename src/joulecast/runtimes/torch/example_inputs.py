"""Change the batch size of example inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from joulecast.runtimes.torch.memory_format import match_memory_format


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
            return match_memory_format(value.new_empty(batch, *value.shape[1:]), value)
        indices = torch.arange(batch) % value.shape[0]
        return match_memory_format(value[indices], value)

    return pytree.tree_map_only(torch.Tensor, resize, inputs)


def find_first_tensor(inputs: Any) -> torch.Tensor | None:
    """Return the first tensor, whose first axis is the batch; None if there is none."""
    tensors = (leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor))
    return next(tensors, None)
