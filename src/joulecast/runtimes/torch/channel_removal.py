"""Remove channels from a copy of a module."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from joulecast.errors import InputError
from joulecast.kinds.channel_groups import ChannelGroup, check_counts
from joulecast.runtimes.torch.channel_dependencies import import_torch_pruning
from joulecast.runtimes.torch.modules import PackedSdpa

RemovedChannels = Mapping[str, Mapping[str, Sequence[int]]]
"""Channels to remove, by module and side."""


def prune_channels(
    net: nn.Module,
    groups: Sequence[ChannelGroup],
    counts: Mapping[str, int],
) -> nn.Module:
    """Return a copy of a module that keeps the most important channels of each group.

    Args:
        net: The module to prune.
        groups: Its channel groups, with importance.
        counts: Channels to keep, by name of the group; other groups keep theirs.

    Raises:
        InputError: There is no such group, or it cannot have that many channels.
    """
    return remove_channels(net, list_removed_channels(groups, counts))


def list_removed_channels(
    groups: Sequence[ChannelGroup], counts: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    """Return the channels to remove, by module and side, least important first out."""
    check_counts(groups, counts)
    removed: dict[str, dict[str, set[int]]] = {}
    for group in groups:
        steps = (group.channels - counts.get(group.name, group.channels)) // group.step
        for step in group.rank()[:steps]:
            for coupling in group.couplings:
                sides = removed.setdefault(coupling.path, {})
                sides.setdefault(coupling.side, set()).update(coupling.channels_by_step[step])
    return {
        path: {side: sorted(channels) for side, channels in sides.items()}
        for path, sides in removed.items()
    }


def remove_channels(net: nn.Module, removed: RemovedChannels) -> nn.Module:
    """Return a copy of a module without some channels.

    Raises:
        InputError: The module has no such submodule, or no such channels.
    """
    import_torch_pruning()
    pruned = copy.deepcopy(net)
    tied = list_tied_parameters(pruned)
    for path, sides in removed.items():
        for side, channels in sides.items():
            try:
                _remove_from(pruned, path, side, list(channels))
            except (AttributeError, IndexError, RuntimeError, AssertionError) as error:
                raise InputError(
                    f"channels {list(channels)[:5]}… of {path} ({side}) cannot be removed: {error}"
                ) from error
    restore_tied_parameters(pruned, tied)
    return pruned


def list_tied_parameters(net: nn.Module) -> list[list[str]]:
    """Return groups of names that refer to the same parameter."""
    names: dict[int, list[str]] = {}
    for name, value in net.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def restore_tied_parameters(net: nn.Module, tied: Sequence[Sequence[str]]) -> None:
    """Tie parameters again that a conversion or a removal replaced by copies."""
    for first, *others in tied:
        for name in others:
            owner, _, attribute = name.rpartition(".")
            value = net.get_parameter(first)
            if net.get_parameter(name).shape == value.shape:
                setattr(net.get_submodule(owner), attribute, value)


def _remove_from(net: nn.Module, path: str, side: str, channels: list[int]) -> None:
    owner_path, _, name = path.rpartition(".")
    owner = net.get_submodule(owner_path)
    target = getattr(owner, name) if name else net
    if isinstance(target, nn.Parameter):
        setattr(owner, name, _drop_indices(target, channels, _find_channel_axis(target)))
        if isinstance(owner, nn.RMSNorm):
            owner.normalized_shape = tuple(getattr(owner, name).shape)
    elif isinstance(target, PackedSdpa):
        target.drop_heads(len(channels) // target.head_dim)
    else:
        tp = import_torch_pruning()
        pruner = tp.pruner.function.PrunerBox[tp.ops.module2type(target)]
        requires_grad = {name: value.requires_grad for name, value in target.named_parameters()}
        (pruner.prune_in_channels if side == "in" else pruner.prune_out_channels)(target, channels)
        for name, value in target.named_parameters():
            value.requires_grad_(requires_grad[name])


def _find_channel_axis(value: torch.Tensor) -> int:
    """Return the axis of a parameter that Torch-Pruning prunes: the last one longer than 1."""
    return max((axis for axis, size in enumerate(value.shape) if size > 1), default=0)


def _drop_indices(value: nn.Parameter, indices: Sequence[int], axis: int) -> nn.Parameter:
    dropped = set(indices)
    kept = [index for index in range(value.shape[axis]) if index not in dropped]
    selection = torch.tensor(kept, dtype=torch.long, device=value.device)
    left = value.detach().index_select(axis, selection)
    return nn.Parameter(left, requires_grad=value.requires_grad)
