"""How important each step of a group's channels is: by the size of its weights, or by Taylor.

    magnitude   Σ w²              of all weights that go with a channel
    taylor      |Σ w·∂loss/∂w|    what the loss would change by without them, to first order

Every coupled tensor has the same say: its scores are divided by their mean before they are added,
and a group's importance adds up to 1. Taylor needs gradients in the net: run backward first.
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
    net: nn.Module, groups: Sequence[ChannelGroup], by: str = "magnitude"
) -> tuple[ChannelGroup, ...]:
    """The same groups with the importance of their steps in this net.

    Raises:
        InputError: There is no such way, or Taylor is asked for and the net has no gradients.
    """
    if by not in IMPORTANCES:
        raise InputError(f"there is no importance {by!r}; known are {', '.join(IMPORTANCES)}")
    if by == "taylor" and not any(value.grad is not None for value in net.parameters()):
        raise InputError("Taylor importance needs gradients: run backward of a loss first")
    return tuple(replace(group, importance=_weigh_group(net, group, by)) for group in groups)


def run_backward(loaded: LoadedNet) -> None:
    """Leave gradients in a net: of its own loss, else of cross-entropy, on its example inputs."""
    loss = loaded.loss or cross_entropy_loss
    loaded.net.zero_grad()
    loss(call_net(loaded.net, loaded.inputs)).backward()


def _weigh_group(net: nn.Module, group: ChannelGroup, by: str) -> tuple[float, ...]:
    total = torch.zeros(len(group.importance), dtype=torch.float64)
    for one in group.couplings:
        for value, axis in _list_weights(net, one):
            scores = _score(value, axis, by)
            if scores is not None:
                total += _sum_places(scores, one)
    whole = float(total.sum())
    if not whole > 0.0:
        return (1.0 / len(total),) * len(total)
    return tuple(float(score) / whole for score in total)


def _score(value: torch.Tensor, axis: int, by: str) -> Any:
    """A number for each place of an axis, 1 on average; None where nothing is known."""
    if value.device.type == "meta" or (by == "taylor" and value.grad is None):
        return None
    wide = value.detach().to("cpu", torch.float64)
    if by == "taylor":
        wide = wide * value.grad.detach().to("cpu", torch.float64)  # type: ignore[union-attr]
    rows = wide.transpose(0, axis).flatten(1) if wide.dim() > 1 else wide[:, None]
    scores = rows.sum(1).abs() if by == "taylor" else rows.square().sum(1)
    mean = float(scores.mean())
    return scores / mean if mean > 0 else None


def _sum_places(scores: torch.Tensor, one: Coupling) -> torch.Tensor:
    sizes = [len(places) for places in one.channels_by_step]
    flat = torch.tensor(
        [index for places in one.channels_by_step for index in places], dtype=torch.long
    )
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    # A grouped convolution has one column for the same channel of all its groups.
    found = torch.zeros(len(sizes), dtype=torch.float64)
    return found.index_add(0, owner, scores[flat % len(scores)]) / max(1, len(flat))


def _list_weights(net: nn.Module, one: Coupling) -> Iterator[tuple[torch.Tensor, int]]:
    """Tensors that go with a coupling, and the axis on which its channels stand."""
    owner, _, last = one.path.rpartition(".")
    target: Any = getattr(net.get_submodule(owner), last) if last else net
    if isinstance(target, nn.Parameter):
        yield target, max((at for at, size in enumerate(target.shape) if size > 1), default=0)
    elif isinstance(target, nn.MultiheadAttention):
        yield target.out_proj.weight, 0
        if target.in_proj_weight is not None:
            yield target.in_proj_weight, 1
    elif isinstance(getattr(target, "weight", None), torch.Tensor):
        axes = {"in": 1, "both": 1 if isinstance(target, nn.Embedding) else 0}
        axis = axes.get(one.side, 0)
        yield target.weight, 1 - axis if getattr(target, "transposed", False) else axis
