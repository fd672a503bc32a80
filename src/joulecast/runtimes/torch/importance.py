"""Rank channels by importance: by weight magnitude or by a first-order Taylor expansion.

    magnitude   Σ w²              over all weights that belong to a channel
    taylor      |Σ w·∂loss/∂w|    change of the loss without them, to first order

Every coupled tensor counts equally: its scores are divided by their mean before they are added, and
the importance of a group sums to 1. Taylor needs gradients: run backward first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from joulecast.errors import InputError
from joulecast.kinds.channel_groups import ChannelGroup, Coupling
from joulecast.runtimes.torch.load import LoadedNet
from joulecast.runtimes.torch.losses import cross_entropy_loss
from joulecast.runtimes.torch.training_step import call_net

IMPORTANCES = ("magnitude", "taylor")


def compute_importance(
    net: nn.Module, groups: Sequence[ChannelGroup], criterion: str = "magnitude"
) -> tuple[ChannelGroup, ...]:
    """Return the groups with the importance of their steps in this module.

    Raises:
        InputError: The criterion is unknown, or is ``taylor`` and the module has no gradients.
    """
    if criterion not in IMPORTANCES:
        raise InputError(f"unknown importance {criterion!r}: give {' or '.join(IMPORTANCES)}")
    if criterion == "taylor" and not any(value.grad is not None for value in net.parameters()):
        raise InputError("Taylor importance needs gradients: run backward of a loss first")
    return tuple(replace(group, importance=_score_group(net, group, criterion)) for group in groups)


def run_backward(loaded: LoadedNet) -> None:
    """Compute gradients on the example inputs: of the module's own loss, else of cross-entropy."""
    loss = loaded.loss or cross_entropy_loss
    loaded.net.zero_grad()
    loss(call_net(loaded.net, loaded.inputs)).backward()


def _score_group(net: nn.Module, group: ChannelGroup, criterion: str) -> tuple[float, ...]:
    scores = torch.zeros(len(group.importance), dtype=torch.float64)
    for coupling in group.couplings:
        for tensor, axis in _iterate_tensors(net, coupling):
            channel_scores = _score_channels(tensor, axis, criterion)
            if channel_scores is not None:
                scores += _average_by_step(channel_scores, coupling)
    total = float(scores.sum())
    if not total > 0.0:
        return (1.0 / len(scores),) * len(scores)
    return tuple(float(score) / total for score in scores)


def _score_channels(tensor: torch.Tensor, axis: int, criterion: str) -> torch.Tensor | None:
    """Return a score for each index of an axis, 1 on average; None where all are unknown."""
    if tensor.device.type == "meta" or (criterion == "taylor" and tensor.grad is None):
        return None
    values = tensor.detach().to("cpu", torch.float64)
    if criterion == "taylor":
        assert tensor.grad is not None
        values = values * tensor.grad.detach().to("cpu", torch.float64)
    rows = values.transpose(0, axis).flatten(1) if values.dim() > 1 else values[:, None]
    scores = rows.sum(1).abs() if criterion == "taylor" else rows.square().sum(1)
    mean = float(scores.mean())
    return scores / mean if mean > 0 else None


def _average_by_step(scores: torch.Tensor, coupling: Coupling) -> torch.Tensor:
    sizes = [len(channels) for channels in coupling.channels_by_step]
    flat = torch.tensor([c for channels in coupling.channels_by_step for c in channels]).long()
    step = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    sums = torch.zeros(len(sizes), dtype=torch.float64)
    # The weight of a grouped convolution has one column for the same channel of all its groups.
    return sums.index_add(0, step, scores[flat % len(scores)]) / max(1, len(flat))


def _iterate_tensors(net: nn.Module, coupling: Coupling) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield the tensors of a coupling, each with the axis of its channels."""
    owner, _, name = coupling.path.rpartition(".")
    target: Any = getattr(net.get_submodule(owner), name) if name else net
    if isinstance(target, nn.Parameter):
        yield target, max((axis for axis, size in enumerate(target.shape) if size > 1), default=0)
    elif isinstance(target, nn.MultiheadAttention):
        yield target.out_proj.weight, 0
        if target.in_proj_weight is not None:
            yield target.in_proj_weight, 1
    elif isinstance(getattr(target, "weight", None), torch.Tensor):
        axes = {"in": 1, "both": 1 if isinstance(target, nn.Embedding) else 0}
        axis = axes.get(coupling.side, 0)
        yield target.weight, 1 - axis if getattr(target, "transposed", False) else axis
