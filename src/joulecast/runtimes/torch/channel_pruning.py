"""Find the channel groups of a module that can be pruned.

Torch-Pruning finds which channels belong together (``channel_dependencies``). Whether a group can
really be removed is tried on a copy on the meta device, and which sizes of the Network shrink is
read from pruned copies (``channel_slots``). A group whose removal breaks the module is unprunable,
with a reason. ``importance`` ranks channels, ``channel_removal`` removes them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from joulecast.errors import InputError
from joulecast.kinds import find_kind
from joulecast.kinds.channel_groups import ChannelGroup, Coupling
from joulecast.records import Network
from joulecast.runtimes.torch.channel_dependencies import (
    ChannelDependency,
    ChannelIndices,
    check_no_recurrent,
    find_channel_dependencies,
    import_torch_pruning,
)
from joulecast.runtimes.torch.channel_removal import (
    list_tied_parameters,
    prune_channels,
    restore_tied_parameters,
)
from joulecast.runtimes.torch.channel_slots import find_channel_slots
from joulecast.runtimes.torch.load import LoadedNet, read_loaded_net
from joulecast.runtimes.torch.losses import LossFunction
from joulecast.runtimes.torch.training_step import call_net

# Sizes that the layer which computes a group's channels has.
_OUTPUT_SIZES = ("cout", "width", "heads")


@dataclass(frozen=True)
class PrunableChannels:
    """The channel groups of a module.

    Attributes:
        network: The module as it was read; the groups' slots refer to its sizes.
        groups: Groups that can be pruned.
        not_prunable: Layers that cannot be pruned, each with the reason.
    """

    network: Network
    groups: tuple[ChannelGroup, ...]
    not_prunable: tuple[str, ...]


def find_channel_groups(
    net: nn.Module,
    inputs: Any,
    loss: LossFunction | None = None,
    names: Network | None = None,
) -> PrunableChannels:
    """Return the channel groups that can be pruned, with equal importance.

    Args:
        net: Any module; it is not changed.
        inputs: Example inputs.
        loss: Computes a scalar from the output, to run backward from.
        names: The same network, with the layer names that people know.

    Raises:
        NetError: The module has recurrent layers, does not run, or cannot be analysed.
        MissingError: Torch-Pruning is not installed.
    """
    import_torch_pruning()
    check_no_recurrent(net)
    meta_net, meta_inputs = _copy_to_meta(net, inputs)
    loaded = LoadedNet(meta_net, meta_inputs, loss)
    base = read_loaded_net(type(net).__name__, loaded)
    dependencies = _verify_together(_find_dependencies(net, inputs, loaded), loaded)
    dependencies = [_find_working_removal(one, loaded, base) for one in dependencies]
    groups = [_make_group(one) for one in dependencies if not one.unprunable_reason]
    usable, rejected = find_channel_slots(
        base, groups, lambda counts: _read_pruned(loaded, groups, counts)
    )
    # Labels only: a hand-written network may read back with other layers.
    labels = {
        layer.name: label.name
        for layer, label in zip(base.layers, (names or base).layers, strict=False)
    }
    reasons = {one.name: one.unprunable_reason for one in dependencies if one.unprunable_reason}
    for group_name in rejected:
        reasons[_root_name(group_name)] = "its sizes do not follow its channels"
    not_prunable = tuple(f"{labels.get(name, name)}: {reason}" for name, reason in reasons.items())
    return PrunableChannels(names or base, _name_groups(usable, names or base), not_prunable)


# ---------------------------------------------------------------------------------------------
# Trying removals on copies


def _copy_to_meta(net: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """Return a copy on the meta device if the module runs there, else a normal copy."""
    meta_net = copy.deepcopy(net).to("meta")
    restore_tied_parameters(meta_net, list_tied_parameters(net))
    meta_inputs = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), inputs)
    if _runs(meta_net, meta_inputs):
        return meta_net, meta_inputs
    return copy.deepcopy(net), inputs


def _find_dependencies(net: nn.Module, inputs: Any, loaded: LoadedNet) -> list[ChannelDependency]:
    """Analyse a copy without a key-value cache, which Torch-Pruning would see as an output."""
    for module, module_inputs in ((loaded.net, loaded.inputs), (net, inputs)):
        candidate = copy.deepcopy(module)
        if hasattr(getattr(candidate, "config", None), "use_cache"):
            candidate.config.use_cache = False  # type: ignore[union-attr]
        if _runs(candidate, module_inputs):
            return find_channel_dependencies(candidate, module_inputs)
    return find_channel_dependencies(copy.deepcopy(net), inputs)


def _runs(net: nn.Module, inputs: Any) -> bool:
    modes = [(module, module.training) for module in net.modules()]
    try:
        with torch.no_grad():
            call_net(net.eval(), inputs)
        return True
    except Exception:  # a module may raise anything
        return False
    finally:
        for module, training in modes:
            module.training = training


def _verify_together(
    dependencies: Sequence[ChannelDependency], loaded: LoadedNet
) -> list[ChannelDependency]:
    """Mark all as verified if the module runs without a step of each, which saves single runs."""
    prunable = [one for one in dependencies if not one.unprunable_reason]
    is_verified = _runs_pruned(loaded, prunable)
    return [replace(one, is_verified=is_verified) for one in dependencies]


def _find_working_removal(
    dependency: ChannelDependency, loaded: LoadedNet, base: Network
) -> ChannelDependency:
    """Return the removal that the module survives: of channels, heads or head dimensions."""
    is_decided = bool(dependency.unprunable_reason) or dependency.is_verified
    if is_decided or _runs_pruned(loaded, [dependency]):
        return dependency
    heads = _list_heads(base)
    head_counts, head_dims = ({pair[i] for pair in heads} for i in (0, 1))
    # Each with its step, and which of heads and head dimension it must not change.
    candidates = [(replace(dependency, head_dim=dim), dim, 1) for dim in sorted(head_dims)]
    candidates += [(replace(dependency, partitions=n), n, 0) for n in sorted(head_counts)]
    for candidate, step, constant in candidates:
        divides = len(dependency.channels) % step == 0 and len(dependency.channels) > step
        if divides and _runs_pruned(loaded, [candidate]):
            left = _list_heads(_read_without_one_step(loaded, candidate))
            if [pair[constant] for pair in left] == [pair[constant] for pair in heads]:
                return candidate
    return replace(
        dependency, unprunable_reason="the network does not run with fewer of its channels"
    )


def _list_heads(network: Network) -> list[tuple[int, int]]:
    """Return the head count and the head dimension of every attention."""
    attentions = [layer for layer in network.layers if find_kind(layer.kind).has_head_dim]
    return [(layer.sizes["heads"], layer.sizes["head_dim"]) for layer in attentions]


def _read_without_one_step(loaded: LoadedNet, dependency: ChannelDependency) -> Network:
    group = _make_group(dependency)
    return _read_pruned(loaded, [group], {group.name: group.channels - group.step})


def _runs_pruned(loaded: LoadedNet, dependencies: Sequence[ChannelDependency]) -> bool:
    groups = [_make_group(one) for one in dependencies]
    groups = [group for group in groups if len(group.importance) > 1]
    counts = {group.name: group.channels - group.step for group in groups}
    try:
        return _runs(prune_channels(loaded.net, groups, counts), loaded.inputs)
    except InputError:
        return False


def _read_pruned(
    loaded: LoadedNet, groups: Sequence[ChannelGroup], counts: Mapping[str, int]
) -> Network:
    pruned = prune_channels(loaded.net, groups, counts)
    return read_loaded_net("", replace(loaded, net=pruned))


# ---------------------------------------------------------------------------------------------
# Groups


def _make_group(dependency: ChannelDependency) -> ChannelGroup:
    """Return a group whose steps respect heads and partitions."""
    channels, width = dependency.channels, len(dependency.channels)
    if dependency.head_dim:
        starts = range(0, width, dependency.head_dim)
        steps = [channels[start : start + dependency.head_dim] for start in starts]
    else:
        stride = width // dependency.partitions
        steps = [channels[start::stride] for start in range(stride)]
    couplings = tuple(
        Coupling(path, side, tuple(_list_indices(indices, step) for step in steps))
        for path, side, indices in dependency.modules
    )
    name = f"{dependency.name}[{channels[0]}]"
    return ChannelGroup(name, len(steps[0]), couplings, (), (1.0 / len(steps),) * len(steps))


def _root_name(group_name: str) -> str:
    return group_name.rpartition("[")[0]


def _list_indices(indices: ChannelIndices, step: Sequence[int]) -> tuple[int, ...]:
    return tuple(index for channel in step for index in indices[channel])


def _name_groups(groups: Sequence[ChannelGroup], names: Network) -> tuple[ChannelGroup, ...]:
    """Name each group after the first layer that computes its channels."""
    named: list[ChannelGroup] = []
    taken: set[str] = set()
    ordered = sorted(groups, key=lambda group: min(slot.layer for slot in group.slots))
    for group in ordered:
        computing = [s.layer for s in group.slots if s.size in _OUTPUT_SIZES and not s.op]
        layer = min(computing, default=min(slot.layer for slot in group.slots))
        name = names.layers[layer].name or f"layer {layer + 1}"
        number = 2
        while name in taken:
            name, number = f"{name.split('#')[0]}#{number}", number + 1
        taken.add(name)
        named.append(replace(group, name=name))
    return tuple(named)
