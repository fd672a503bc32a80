"""Remove channels from a copy of a module."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from joulecast.operators import check_network, network_work
from joulecast.operators.channel_groups import ChannelGroup, Coupling, check_counts
from joulecast.records import Network, Setup, load_record
from joulecast.system.errors import FileError, InputError, MissingError
from joulecast.system.files import MOST_JSON_BYTES, parse_json, read_limited
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.inputs import call_net
from joulecast.torch_nets.load import LoadedNet
from joulecast.torch_nets.losses import cross_entropy_loss
from joulecast.torch_nets.modules import PackedSdpa

RemovedChannels = Mapping[str, Mapping[str, Sequence[int]]]
"""Channels to remove, by module and side."""


def prune_channels(
    net: nn.Module,
    groups: Sequence[ChannelGroup],
    counts: Mapping[str, int],
) -> nn.Module:
    """Return a copy of a module that keeps the most important channels of each group.

    Groups that ``counts`` does not name keep theirs.

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


def import_torch_pruning() -> Any:
    """Return the package Torch-Pruning, or raise MissingError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch_pruning
    except ImportError as error:
        raise MissingError("pruning needs Torch-Pruning: pip install 'joulecast[prune]'") from error
    return torch_pruning


def get_attribute(net: nn.Module, path: str) -> Any:
    """Return a module or parameter by its qualified name."""
    return attrgetter(path)(net) if path else net


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
    owner, target = net.get_submodule(owner_path), get_attribute(net, path)
    if isinstance(target, nn.Parameter):
        axis = _find_channel_axis(target)
        kept = [index for index in range(target.shape[axis]) if index not in set(channels)]
        left = target.detach().index_select(axis, torch.tensor(kept, device=target.device).long())
        setattr(owner, name, nn.Parameter(left, requires_grad=target.requires_grad))
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


def compute_importance(
    net: nn.Module, groups: Sequence[ChannelGroup], criterion: str = "magnitude"
) -> tuple[ChannelGroup, ...]:
    """Return the groups with the importance of their steps: ``magnitude``, or ``taylor``.

    Raises:
        InputError: The criterion is ``taylor`` and the module has no gradients.
    """
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
        sizes = torch.tensor([len(channels) for channels in coupling.channels_by_step])
        flat = torch.tensor([c for channels in coupling.channels_by_step for c in channels]).long()
        steps = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        for tensor, axis in _iterate_tensors(net, coupling):
            found = _score_channels(tensor, axis, criterion)
            if found is not None:
                # A grouped convolution's weight has one column for the same channel of all groups.
                sums = torch.zeros_like(scores).index_add(0, steps, found[flat % len(found)])
                scores += sums / max(1, len(flat))
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


def _iterate_tensors(net: nn.Module, coupling: Coupling) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield the tensors of a coupling, each with the axis of its channels."""
    target = get_attribute(net, coupling.path)
    if isinstance(target, nn.Parameter):
        yield target, _find_channel_axis(target)
    elif isinstance(target, nn.MultiheadAttention):
        yield target.out_proj.weight, 0
        if target.in_proj_weight is not None:
            yield target.in_proj_weight, 1
    elif isinstance(getattr(target, "weight", None), torch.Tensor):
        axes = {"in": 1, "both": 1 if isinstance(target, nn.Embedding) else 0}
        axis = axes.get(coupling.side, 0)
        yield target.weight, 1 - axis if getattr(target, "transposed", False) else axis


FORMAT = "joulecast-pruned"
WEIGHTS, ARCHITECTURE = "weights.safetensors", "architecture.json"


def save_pruned(
    net: nn.Module,
    folder: str | Path,
    *,
    network: Network,
    removed: RemovedChannels,
    source: str = "",
) -> Path:
    """Write a pruned module and its Network into a folder, and return the folder.

    ``source`` says what makes the original module, for messages; empty if it was built from a
    Network.
    """
    path = Path(folder)
    data: dict[str, Any] = {"format": FORMAT, "version": 1, "network": network.to_dict()}
    if source:
        file, colon, name = source.rpartition(":")
        if file.endswith(".py"):
            source = f"{Path(file).resolve()}{colon}{name}"
        data.update(net=source, removed=removed)
    path.mkdir(parents=True, exist_ok=True)
    (path / ARCHITECTURE).write_text(json.dumps(data) + "\n", encoding="utf-8")
    _import_safetensors().torch.save_model(net, str(path / WEIGHTS))
    return path


def load_pruned(folder: str | Path, net: nn.Module | None = None) -> nn.Module:
    """Return the pruned module in a folder, with its weights.

    Args:
        folder: A folder that ``save_pruned`` wrote.
        net: The original module, unless Joulecast built it from a Network. Its weights do not
            matter.

    Raises:
        FileError: The folder contains no pruned module, or its files do not match.
    """
    path = Path(folder)
    try:
        data = parse_json(read_limited(path / ARCHITECTURE, MOST_JSON_BYTES))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError("it is something else")
    except (FileError, ValueError) as error:
        raise FileError(
            f"{path / ARCHITECTURE} is not a pruned network ({error}): give a folder that "
            "`joulecast prune --save` wrote"
        ) from error
    if net is None and "net" in data:
        raise FileError(f"{path} was pruned from {data['net']}: give the original module as net")
    safetensors = _import_safetensors()
    damages = (InputError, KeyError, OSError, RuntimeError, TypeError, ValueError, AttributeError)
    try:
        if net is not None and "net" in data:
            pruned = remove_channels(net, data["removed"])
        else:
            network = load_record(Network, data.get("network"), f"{path}/{ARCHITECTURE}")
            check_network(network)
            # Without its weights, a damaged network could take any amount of memory.
            if network_work(network, Setup()).params > (path / WEIGHTS).stat().st_size:
                raise FileError(f"{WEIGHTS} is smaller than {ARCHITECTURE} says")
            pruned = build_net(network)
        safetensors.torch.load_model(pruned, str(path / WEIGHTS))
    except (*damages, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise FileError(f"{path} cannot be rebuilt ({reason}): prune the network again") from error
    return pruned


def _import_safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingError(
            "saving pruned weights needs safetensors: pip install 'joulecast[prune]'"
        ) from error
    return safetensors
