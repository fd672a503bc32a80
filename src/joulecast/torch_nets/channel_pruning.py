"""Find the channel groups of a module that can be pruned.

Torch-Pruning finds which channels belong together (``channel_dependencies``). Whether a group can
really be removed is tried on a copy on the meta device, and which sizes of the Network shrink is
read from pruned copies. A group whose removal breaks the module is unprunable, with a reason.
``channel_removal`` ranks channels and removes them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from joulecast.operators import find_kind
from joulecast.operators.channel_groups import (
    ChannelGroup,
    ChannelSlot,
    Coupling,
    SlotKey,
    list_slots,
    narrow_network,
)
from joulecast.records import Network
from joulecast.system.errors import InputError, JoulecastError
from joulecast.torch_nets.channel_dependencies import (
    ChannelDependency,
    check_no_recurrent,
    find_channel_dependencies,
    import_torch_pruning,
)
from joulecast.torch_nets.channel_removal import (
    list_tied_parameters,
    prune_channels,
    restore_tied_parameters,
)
from joulecast.torch_nets.inputs import call_net
from joulecast.torch_nets.load import LoadedNet, read_loaded_net
from joulecast.torch_nets.losses import LossFunction
from joulecast.torch_nets.tracer import kept_training_modes

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
    dependencies = _find_dependencies(net, inputs, loaded)
    # If the module runs without a step of each, single runs are saved.
    prunable = [one for one in dependencies if not one.unprunable_reason]
    if not _runs_pruned(loaded, prunable):
        dependencies = [_find_working_removal(one, loaded, base) for one in dependencies]
    groups = [_make_group(one) for one in dependencies if not one.unprunable_reason]
    usable, rejected = _find_channel_slots(
        base, groups, lambda counts: _read_pruned(loaded, groups, counts)
    )
    # Labels only: a hand-written network may read back with other layers.
    labels = {
        layer.name: label.name
        for layer, label in zip(base.layers, (names or base).layers, strict=False)
    }
    reasons = {one.name: one.unprunable_reason for one in dependencies if one.unprunable_reason}
    for group_name in rejected:
        reasons[group_name.rpartition("[")[0]] = "its sizes do not follow its channels"
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
    with kept_training_modes(net), torch.no_grad():
        try:
            call_net(net.eval(), inputs)
            return True
        except Exception:  # a module may raise anything
            return False


def _find_working_removal(
    dependency: ChannelDependency, loaded: LoadedNet, base: Network
) -> ChannelDependency:
    """Return the removal that the module survives: of channels, heads or head dimensions."""
    if dependency.unprunable_reason or _runs_pruned(loaded, [dependency]):
        return dependency
    heads = _list_heads(base)
    head_counts, head_dims = ({pair[i] for pair in heads} for i in (0, 1))
    # Each with its step, and which of heads and head dimension it must not change.
    candidates = [(replace(dependency, head_dim=dim), dim, 1) for dim in sorted(head_dims)]
    candidates += [(replace(dependency, partitions=n), n, 0) for n in sorted(head_counts)]
    for candidate, step, constant in candidates:
        divides = len(dependency.channels) % step == 0 and len(dependency.channels) > step
        if divides and _runs_pruned(loaded, [candidate]):
            group = _make_group(candidate)
            counts = {group.name: group.channels - group.step}
            left = _list_heads(_read_pruned(loaded, [group], counts))
            if [pair[constant] for pair in left] == [pair[constant] for pair in heads]:
                return candidate
    return replace(
        dependency, unprunable_reason="the network does not run with fewer of its channels"
    )


def _list_heads(network: Network) -> list[tuple[int, int]]:
    """Return the head count and the head dimension of every attention."""
    attentions = [layer for layer in network.layers if find_kind(layer.kind).has_head_dim]
    return [(layer.sizes["heads"], layer.sizes["head_dim"]) for layer in attentions]


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
    couplings = []
    for path, side, indices in dependency.modules:
        by_step = [[index for channel in step for index in indices[channel]] for step in steps]
        couplings.append(Coupling(path, side, tuple(map(tuple, by_step))))
    name = f"{dependency.name}[{channels[0]}]"
    return ChannelGroup(name, len(steps[0]), tuple(couplings), (), (1.0 / len(steps),) * len(steps))


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


# ---------------------------------------------------------------------------------------------
# Which sizes of the Network shrink with which group
#
# Every group gets a code word, a subset of a few readings: in those one step of the group is
# removed. A size that depends on one group shrinks by the same amount in exactly the readings of
# its code word. All code words have the same length, so that no union of others equals one. Sizes
# that depend on several groups (concatenated channels) are found by removing each group alone.
# A last reading, with many steps of every group removed, verifies the result: groups that disagree
# with it are reported as unprunable.

PrunedReader = Callable[[Mapping[str, int]], Network]
_Reductions = dict[SlotKey, dict[str, int]]


def _find_channel_slots(
    base: Network, groups: Sequence[ChannelGroup], read_pruned: PrunedReader
) -> tuple[tuple[ChannelGroup, ...], tuple[str, ...]]:
    """Return groups with their slots, and names of groups whose sizes do not follow their channels.

    ``read_pruned`` reads the network that is left with given channel counts.
    """
    rejected: set[str] = {group.name for group in groups if len(group.importance) < 2}
    usable = [group for group in groups if group.name not in rejected]
    while usable:
        try:
            reductions = _find_reductions(base, usable, read_pruned)
        except JoulecastError:
            failed = {group.name for group in usable if not _can_read(group, read_pruned)}
            if not failed:
                raise
        else:
            usable = [
                replace(
                    group,
                    slots=tuple(
                        ChannelSlot(*slot, by_group[group.name])
                        for slot, by_group in sorted(reductions.items(), key=lambda one: one[0][:2])
                        if group.name in by_group
                    ),
                )
                for group in usable
            ]
            failed = _find_inconsistent(base, usable, read_pruned)
        rejected |= failed
        usable = [replace(group, slots=()) if failed else group for group in usable]
        usable = [group for group in usable if group.name not in failed]
        if not failed:
            break
    return tuple(usable), tuple(sorted(rejected))


def _can_read(group: ChannelGroup, read_pruned: PrunedReader) -> bool:
    try:
        read_pruned({group.name: group.channels - group.step})
        return True
    except JoulecastError:
        return False


def _find_reductions(
    base: Network, groups: Sequence[ChannelGroup], read_pruned: PrunedReader
) -> _Reductions:
    """Return how much one step of each group takes from each size."""
    sizes = list_slots(base)
    code_words = _make_code_words(len(groups))
    readings = max((max(word) for word in code_words), default=-1) + 1
    observed: dict[SlotKey, list[int]] = {}
    for reading in range(readings):
        removed = [g for g, word in zip(groups, code_words, strict=True) if reading in word]
        for slot, reduction in _remove_one_step(sizes, removed, read_pruned).items():
            observed.setdefault(slot, [0] * readings)[reading] = reduction
    reductions: _Reductions = {}
    ambiguous: set[int] = set()
    for slot, amounts in observed.items():
        word = tuple(reading for reading, amount in enumerate(amounts) if amount)
        distinct = {amounts[reading] for reading in word}
        if word in code_words and len(distinct) == 1:
            name = groups[code_words.index(word)].name
            reductions.setdefault(slot, {})[name] = distinct.pop()
        else:
            ambiguous |= {i for i, part in enumerate(code_words) if set(part) <= set(word)}
    for index in sorted(ambiguous):
        for slot, reduction in _remove_one_step(sizes, [groups[index]], read_pruned).items():
            reductions.setdefault(slot, {})[groups[index].name] = reduction
    return reductions


def _remove_one_step(
    sizes: Mapping[SlotKey, int], groups: Sequence[ChannelGroup], read_pruned: PrunedReader
) -> dict[SlotKey, int]:
    """Return by how much each size shrinks if one step of these groups is removed."""
    pruned = read_pruned({group.name: group.channels - group.step for group in groups})
    left = list_slots(pruned)
    return {
        slot: size - left[slot]
        for slot, size in sizes.items()
        if slot in left and left[slot] != size
    }


def _make_code_words(count: int) -> list[tuple[int, ...]]:
    """Return ``count`` different subsets of readings, all of the same size."""
    readings = 1
    while math.comb(readings, readings // 2 or 1) < count:
        readings += 1
    return list(combinations(range(readings), readings // 2 or 1))[:count]


def _find_inconsistent(
    base: Network, groups: Sequence[ChannelGroup], read_pruned: PrunedReader
) -> set[str]:
    """Return the groups without slots, else those whose slots predict a wrong layer."""
    without_slots = {group.name for group in groups if not group.slots}
    if without_slots:
        return without_slots
    # Remove about a third, with shares that differ between neighbouring groups.
    counts = {
        group.name: group.channels
        - group.step * (1 + (len(group.importance) - 1) * (index % 3 + 1) // 5)
        for index, group in enumerate(groups)
        if len(group.importance) > 2
    }
    predicted, actual = narrow_network(base, groups, counts), read_pruned(counts)
    if len(predicted.layers) != len(actual.layers):
        return {group.name for group in groups}
    wrong = {
        index
        for index, pair in enumerate(zip(predicted.layers, actual.layers, strict=True))
        if pair[0] != pair[1]
    }
    return {group.name for group in groups if any(slot.layer in wrong for slot in group.slots)}
