"""Find the channel groups of a module that can be pruned.

    module ──Torch-Pruning's graph──▶ dependencies ──tried on copies──▶ groups ──read──▶ slots

For every channel of a layer, a dependency lists the channels of other modules that must be removed
with it. Channels of one layer that other modules use differently are separate dependencies. Whether
one can really be removed is tried on a copy on the meta device, and which sizes of the Network
shrink is read from pruned copies. A group whose removal breaks the module is unprunable, with a
reason. ``channel_removal`` ranks channels and removes them.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from joulecast.system.errors import InputError, JoulecastError, NetError
from joulecast.torch_nets.channel_removal import (
    get_attribute,
    import_torch_pruning,
    list_tied_parameters,
    prune_channels,
    restore_tied_parameters,
)
from joulecast.torch_nets.inputs import call_net
from joulecast.torch_nets.load import LoadedNet, read_loaded_net
from joulecast.torch_nets.losses import LossFunction
from joulecast.torch_nets.modules import PackedSdpa
from joulecast.torch_nets.tracer import kept_state

# Sizes that the layer which computes a group's channels has.
_OUTPUT_SIZES = ("cout", "width", "heads")
# Torch-Pruning's dependency queries; a network of a hundred layers takes a few thousand.
_MAX_QUERIES = 20_000

_Modules = dict[tuple[str, str], dict[int, list[int]]]
"""By path and side (``out``, ``in`` or ``both``), which channels go with each of the root's."""


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
    for path, module in net.named_modules():
        # The gates of recurrent layers share one tensor that Torch-Pruning cannot prune.
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
            kind = type(module).__name__
            raise NetError(
                f"networks with {kind} layers cannot be pruned (here: {path or 'the module'}): "
                "give a network of convolutions, linear layers and attention"
            )
    meta_net = copy.deepcopy(net).to("meta")
    restore_tied_parameters(meta_net, list_tied_parameters(net))
    meta_inputs = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), inputs)
    loaded = LoadedNet(meta_net, meta_inputs, loss)
    if not _runs(meta_net, meta_inputs):
        loaded = LoadedNet(copy.deepcopy(net), inputs, loss)
    base = read_loaded_net(type(net).__name__, loaded)
    dependencies = _find_dependencies(net, inputs, loaded)
    # If the module runs without a step of each, single runs are saved.
    if not _runs_pruned(loaded, [one for one in dependencies if not one.unprunable_reason]):
        dependencies = [_find_working_removal(one, loaded, base) for one in dependencies]
    groups = [one.make_group() for one in dependencies if not one.unprunable_reason]
    usable, rejected = _find_channel_slots(
        base, groups, lambda counts: _read_pruned(loaded, groups, counts)
    )
    # Labels only: a hand-written network may read back with other layers.
    shown = names or base
    labels = {old.name: new.name for old, new in zip(base.layers, shown.layers, strict=False)}
    reasons = {one.name: one.unprunable_reason for one in dependencies if one.unprunable_reason}
    for group_name in sorted(rejected):
        reasons[group_name.rpartition("[")[0]] = "its sizes do not follow its channels"
    not_prunable = tuple(f"{labels.get(name, name)}: {reason}" for name, reason in reasons.items())
    return PrunableChannels(shown, _name_groups(usable, shown), not_prunable)


def _name_groups(groups: Sequence[ChannelGroup], names: Network) -> tuple[ChannelGroup, ...]:
    """Name each group after the first layer that computes its channels."""
    named: dict[str, ChannelGroup] = {}
    for group in sorted(groups, key=lambda group: min(slot.layer for slot in group.slots)):
        computing = [s.layer for s in group.slots if s.size in _OUTPUT_SIZES and not s.op]
        layer = min(computing, default=min(slot.layer for slot in group.slots))
        first = name = names.layers[layer].name or f"layer {layer + 1}"
        number = 2
        while name in named:
            name, number = f"{first}#{number}", number + 1
        named[name] = replace(group, name=name)
    return tuple(named.values())


# ---------------------------------------------------------------------------------------------
# Dependencies, from Torch-Pruning's graph


@dataclass(frozen=True)
class _Dependency:
    """Channels of a layer and everything that depends on them.

    Attributes:
        name: The module that computes them.
        channels: Which of its channels.
        modules: Modules and parameters that must lose channels with it.
        partitions: Equal parts that must lose as many channels each (groups, heads).
        head_dim: Consecutive channels that must be removed together; 0 if single ones can be.
        unprunable_reason: Why they cannot be removed; empty if they can.
    """

    name: str
    channels: tuple[int, ...] = ()
    modules: Mapping[tuple[str, str], Mapping[int, list[int]]] = field(default_factory=dict)
    partitions: int = 1
    head_dim: int = 0
    unprunable_reason: str = ""

    def make_group(self) -> ChannelGroup:
        """Return a group whose steps respect heads and partitions."""
        channels, width = self.channels, len(self.channels)
        if self.head_dim:
            starts = range(0, width, self.head_dim)
            steps = [channels[start : start + self.head_dim] for start in starts]
        else:
            stride = width // self.partitions
            steps = [channels[start::stride] for start in range(stride)]
        couplings = []
        for (path, side), indices in self.modules.items():
            by_step = (tuple(i for channel in step for i in indices[channel]) for step in steps)
            couplings.append(Coupling(path, side, tuple(by_step)))
        importance = (1.0 / len(steps),) * len(steps)
        name = f"{self.name}[{channels[0]}]"
        return ChannelGroup(name, len(steps[0]), tuple(couplings), (), importance)


def _find_dependencies(net: nn.Module, inputs: Any, loaded: LoadedNet) -> list[_Dependency]:
    """Analyse a copy without a key-value cache, which Torch-Pruning would see as an output.

    GPT-2 and Llama run on the meta device with a cache, but not without one.
    """
    for module, module_inputs in ((loaded.net, loaded.inputs), (net, inputs)):
        candidate = copy.deepcopy(module)
        config: Any = getattr(candidate, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        if _runs(candidate, module_inputs):
            return _analyse(candidate, module_inputs)
    return _analyse(copy.deepcopy(net), inputs)


def _analyse(net: nn.Module, inputs: Any) -> list[_Dependency]:
    """Return all dependencies that do not reach the output. The module is changed."""
    tp = import_torch_pruning()
    net.requires_grad_(True)
    graph = tp.DependencyGraph()
    graph.register_customized_layer(PackedSdpa, _make_sdpa_pruner(tp))
    outputs: list[torch.Tensor] = []

    def call(module: nn.Module, inputs: Any) -> Any:
        leaves = pytree.tree_leaves(call_net(module, inputs))
        outputs.extend(x for x in leaves if isinstance(x, torch.Tensor) and x.grad_fn is not None)
        return list(outputs)

    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            graph.build_dependency(net, inputs, forward_fn=call, verbose=False)
            _limit_queries(graph)
            kinds = (tp.ops.TORCH_CONV, tp.ops.TORCH_LINEAR, tp.ops.TORCH_EMBED)
            roots = [cls for one in kinds for cls in (one if isinstance(one, tuple) else (one,))]
            groups = list(graph.get_all_groups(root_module_types=tuple(roots)))
            sdpa_outputs = {}
            for path, module in net.named_modules():
                if isinstance(module, PackedSdpa) and module in graph.module2node:
                    pruner = graph.get_pruner_of_module(module)
                    channels = list(range(pruner.get_out_channels(module)))
                    group = graph.get_pruning_group(module, pruner.prune_out_channels, channels)
                    sdpa_outputs[path] = _map_channels(graph, group)
    except Exception as error:  # Torch-Pruning raises AssertionError, IndexError and others
        text = " ".join(str(error).split())[:200]
        raise NetError(
            f"Torch-Pruning cannot analyse this network: {type(error).__name__}: {text}"
        ) from error
    output_nodes = {id(output.grad_fn) for output in outputs}
    found: list[_Dependency] = []
    for group in groups:
        ends = [
            item.dep.target.type == tp.ops.OPTYPE.OUTPUT
            or id(item.dep.target.grad_fn) in output_nodes
            for item in group.items
            if _name_side(graph, item.dep.handler) != "in"
        ]
        if not any(ends):
            found += _split_group(graph, group)
    return [_find_partitions(net, one) for one in _merge_by_sdpa(net, found, sdpa_outputs)]


def _limit_queries(graph: Any) -> None:
    """Make Torch-Pruning raise instead of looping forever, as it does on some networks."""
    left = iter(range(_MAX_QUERIES))

    def limit(is_triggered_by: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def query(handler: Any) -> bool:
            if next(left, None) is None:
                raise RuntimeError("its channels depend on each other in a cycle")
            return is_triggered_by(handler)

        return query

    for node in graph.module2node.values():
        for dependency in node.dependencies:
            dependency.is_triggered_by = limit(dependency.is_triggered_by)


def _map_channels(graph: Any, group: Any) -> _Modules:
    """Return which channels of each module and parameter go with each channel of the root."""
    found: _Modules = {}
    for item in group.items:
        if path := _find_path(graph, item.dep.target.module):
            indices = found.setdefault((path, _name_side(graph, item.dep.handler)), {})
            for index, root_index in zip(item.idxs, item.root_idxs, strict=True):
                indices.setdefault(root_index, []).append(index)
    return found


def _name_side(graph: Any, handler: Any) -> str:
    is_out = graph.is_out_channel_pruning_fn(handler)
    is_in = graph.is_in_channel_pruning_fn(handler)
    return "both" if is_out and is_in else "out" if is_out else "in"


def _find_path(graph: Any, module: Any) -> str:
    """Return the name of a module or parameter; empty for nodes that Torch-Pruning added."""
    if isinstance(module, nn.Parameter):
        return str(graph._param_to_name[module])
    return str(graph._module2name.get(module) or "")


def _split_group(graph: Any, group: Any) -> list[_Dependency]:
    """Split a group by which modules use the channels of its root."""
    found, root = _map_channels(graph, group), graph._module2name[group[0].dep.target.module]
    modules = {
        _find_path(graph, one.dep.target.module): one.dep.target.module for one in group.items
    }
    for path, module in modules.items():
        if isinstance(module, PackedSdpa):
            return _list_sdpa_inputs(path, list(found), modules)
    if any(None in indices for indices in found.values()):
        return [_Dependency(root, unprunable_reason="its channels are repeated for other modules")]
    by_use: dict[Any, list[int]] = {}
    for channel in range(len(group[0].idxs)):
        use = tuple((key, len(indices.get(channel, ()))) for key, indices in found.items())
        by_use.setdefault(use, []).append(channel)
    return [
        _Dependency(
            root,
            tuple(channels),
            {
                key: {channel: indices[channel] for channel in channels}
                for key, indices in found.items()
                if channels[0] in indices
            },
        )
        for channels in by_use.values()
    ]


def _find_partitions(net: nn.Module, dependency: _Dependency) -> _Dependency:
    """Add the partitions that grouped convolutions, group norms and heads require."""
    counts, reason = [1], ""
    for (path, _), indices in dependency.modules.items():
        module, count = get_attribute(net, path), 1
        if isinstance(module, nn.GroupNorm):
            count = module.num_groups
        elif isinstance(module, nn.MultiheadAttention):
            count = module.num_heads
        elif isinstance(module, nn.modules.conv._ConvNd) and module.groups != module.out_channels:
            count = module.groups
        if count > 1:
            # A partition is a range of indices, so channels must keep their index everywhere.
            if any(index != [position] for position, index in enumerate(indices.values())):
                reason = reason or f"{path} divides its channels into {count} groups"
            counts.append(count)
    most = max(counts)
    if any(most % count for count in counts) or len(dependency.channels) % most:
        reason = reason or f"its channels are divided into {' and '.join(map(str, counts))} groups"
    elif most > 1 and most == len(dependency.channels):
        reason = reason or "every channel is a group by itself"
    reason = dependency.unprunable_reason or reason
    return replace(dependency, partitions=1 if reason else most, unprunable_reason=reason)


# ---------------------------------------------------------------------------------------------
# PackedSdpa: whole heads are removed


def _make_sdpa_pruner(tp: Any) -> Any:
    """Stop Torch-Pruning at PackedSdpa: only its heads connect its inputs and outputs."""

    class SdpaPruner(tp.pruner.function.BasePruningFunc):  # type: ignore[misc]
        def prune_out_channels(self, layer: Any, idxs: Sequence[int]) -> Any:
            return layer

        def prune_in_channels(self, layer: Any, idxs: Sequence[int]) -> Any:
            return layer

        def get_out_channels(self, layer: Any) -> int:
            return int(layer.heads * layer.head_dim)

        def get_in_channels(self, layer: Any) -> None:
            return None

    return SdpaPruner()


def _list_sdpa_inputs(
    sdpa: str, members: list[tuple[str, str]], modules: Mapping[str, Any]
) -> list[_Dependency]:
    """Return a dependency for each linear layer before an attention, whatever its channels do."""
    found = []
    for path, side in members:
        if path == sdpa:
            continue
        if side != "out" or not isinstance(modules[path], nn.Linear):
            reason = "another module lies between it and its attention"
            return [_Dependency(path, unprunable_reason=reason)]
        channels = tuple(range(modules[path].out_features))
        indices = {channel: [channel] for channel in channels}
        found.append(_Dependency(path, channels, {(path, side): indices, (sdpa, "in"): {}}))
    return found


def _merge_by_sdpa(
    net: nn.Module, dependencies: list[_Dependency], outputs: Mapping[str, _Modules]
) -> list[_Dependency]:
    """Merge the dependencies before each attention into one that is removed by heads."""
    before: dict[str, list[_Dependency]] = {}
    merged = []
    for one in dependencies:
        sdpas = [path for path, side in one.modules if path in outputs and side == "in"]
        if sdpas:
            before.setdefault(sdpas[0], []).append(one)
        else:
            merged.append(one)
    for path, found in before.items():
        sdpa, name = get_attribute(net, path), found[0].name
        width = sdpa.heads * sdpa.head_dim
        counts = [len(one.channels) for one in found]
        is_complete = sum(counts) == 3 * width and not any(count % width for count in counts)
        if sdpa.heads != sdpa.kv_heads or not is_complete:
            merged.append(_Dependency(name, unprunable_reason="its heads share keys and values"))
            continue
        modules = dict(outputs[path])
        for one in found:
            for (target, side), indices in one.modules.items():
                if target != path:
                    heads = modules[target, side] = {channel: [] for channel in range(width)}
                    for position, channel in enumerate(one.channels):
                        heads[position % width] += indices[channel]
        merged.append(_Dependency(name, tuple(range(width)), modules, head_dim=sdpa.head_dim))
    return merged


# ---------------------------------------------------------------------------------------------
# Trying removals on copies


def _runs(net: nn.Module, inputs: Any) -> bool:
    with kept_state(net), torch.no_grad():
        try:
            call_net(net.eval(), inputs)
            return True
        except Exception:  # a module may raise anything
            return False


def _runs_pruned(loaded: LoadedNet, dependencies: Sequence[_Dependency]) -> bool:
    groups = [one.make_group() for one in dependencies]
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


def _find_working_removal(dependency: _Dependency, loaded: LoadedNet, base: Network) -> _Dependency:
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
            group = candidate.make_group()
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


# ---------------------------------------------------------------------------------------------
# Which sizes of the Network shrink with which group
#
# Every group gets a code word, a subset of a few readings: in those one step of the group is
# removed. A size that depends on one group shrinks by the same amount in exactly the readings of
# its code word. All code words have the same length, so that no union of others equals one. Sizes
# that depend on several groups (concatenated channels) are found by removing each group alone.
# A last reading, with many steps of every group removed, verifies the result: groups that disagree
# with it are reported as unprunable.

_Reader = Callable[[Mapping[str, int]], Network]
"""Reads the network that is left with given channel counts."""


def _find_channel_slots(
    base: Network, groups: Sequence[ChannelGroup], read_pruned: _Reader
) -> tuple[Sequence[ChannelGroup], set[str]]:
    """Return groups with their slots, and names of groups whose sizes do not follow their channels.

    Without groups that fail, the others are tried again.
    """
    rejected = {group.name for group in groups if len(group.importance) < 2}
    while usable := [group for group in groups if group.name not in rejected]:
        try:
            usable = _add_slots(base, usable, read_pruned)
        except JoulecastError:
            failed = {group.name for group in usable if not _can_read(group, read_pruned)}
            if not failed:
                raise
        else:
            failed = _find_inconsistent(base, usable, read_pruned)
        if not failed:
            break
        rejected |= failed
    return usable, rejected


def _can_read(group: ChannelGroup, read_pruned: _Reader) -> bool:
    try:
        read_pruned({group.name: group.channels - group.step})
        return True
    except JoulecastError:
        return False


def _add_slots(
    base: Network, groups: Sequence[ChannelGroup], read_pruned: _Reader
) -> list[ChannelGroup]:
    """Return the groups with how much one step of each takes from each size."""
    sizes, readings = list_slots(base), 1
    while math.comb(readings, readings // 2 or 1) < len(groups):
        readings += 1
    code_words = list(combinations(range(readings), readings // 2 or 1))[: len(groups)]

    def remove_one_step(removed: Sequence[ChannelGroup]) -> dict[SlotKey, int]:
        """Return by how much each size shrinks if one step of these groups is removed."""
        left = list_slots(read_pruned({one.name: one.channels - one.step for one in removed}))
        both = ((slot, size, left.get(slot, size)) for slot, size in sizes.items())
        return {slot: old - new for slot, old, new in both if old != new}

    observed: dict[SlotKey, list[int]] = {}
    for reading in range(readings):
        removed = [g for g, word in zip(groups, code_words, strict=True) if reading in word]
        for slot, reduction in (remove_one_step(removed) if removed else {}).items():
            observed.setdefault(slot, [0] * readings)[reading] = reduction
    found: dict[str, dict[SlotKey, int]] = {group.name: {} for group in groups}
    ambiguous: set[int] = set()
    for slot, amounts in observed.items():
        word = tuple(reading for reading, amount in enumerate(amounts) if amount)
        distinct = {amounts[reading] for reading in word}
        if word in code_words and len(distinct) == 1:
            found[groups[code_words.index(word)].name][slot] = distinct.pop()
        else:
            ambiguous |= {i for i, part in enumerate(code_words) if set(part) <= set(word)}
    for index in sorted(ambiguous):
        found[groups[index].name].update(remove_one_step([groups[index]]))
    return [
        replace(
            group,
            slots=tuple(
                ChannelSlot(*slot, reduction)
                for slot, reduction in sorted(found[group.name].items(), key=lambda one: one[0][:2])
            ),
        )
        for group in groups
    ]


def _find_inconsistent(
    base: Network, groups: Sequence[ChannelGroup], read_pruned: _Reader
) -> set[str]:
    """Return the groups without slots, else those whose slots predict a wrong layer."""
    if without_slots := {group.name for group in groups if not group.slots}:
        return without_slots
    # Remove about a third, with shares that differ between neighbouring groups.
    counts = {
        group.name: group.channels
        - group.step * (1 + (len(group.importance) - 1) * (index % 3 + 1) // 5)
        for index, group in enumerate(groups)
        if len(group.importance) > 2
    }
    predicted, actual = narrow_network(base, groups, counts).layers, read_pruned(counts).layers
    if len(predicted) != len(actual):
        return {group.name for group in groups}
    pairs = zip(predicted, actual, strict=True)
    wrong = {index for index, (one, other) in enumerate(pairs) if one != other}
    return {group.name for group in groups if any(slot.layer in wrong for slot in group.slots)}
