"""Which channels of a net can only be cut together, by Torch-Pruning's dependency graph.

Takes a net whose weights may lie on ``meta`` and example inputs, gives Ties: for every channel of a
layer which channels of which modules go with it. Channels of one layer that lead to different
places are different ties. Nothing is tried here; ``shrink`` tries what is found.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from joulecast.errors import MissingError, NetError
from joulecast.runtimes.torch.modules import PackedSdpa
from joulecast.runtimes.torch.training_step import call_net

Places = dict[int, list[int]]

# Of asking what depends on what: a net of a hundred layers takes a few thousand.
_MOST_STEPS = 20_000


@dataclass(frozen=True)
class ChannelDependency:
    """Channels of a layer with everything that depends on them.

    Attributes:
        name: The module that makes them.
        channels: Which of its channels.
        items: Module or parameter, side, and for each channel those of that module's.
        parts: Equal parts in which channels must go, one of each at a time; 0 where they cannot.
        head_dim: Channels that go at a time, side by side; 0 where they need not.
        why_whole: Why they cannot be cut; empty where they may.
        tried: The net is known to run without some of them.
    """

    name: str
    channels: tuple[int, ...]
    items: tuple[tuple[str, str, Places], ...]
    parts: int = 1
    head_dim: int = 0
    why_whole: str = ""
    tried: bool = False


def import_pruning() -> Any:
    """Torch-Pruning, where it is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch_pruning
    except ImportError as error:
        raise MissingError(
            "cutting nets needs Torch-Pruning: pip install 'joulecast[prune]'"
        ) from error
    return torch_pruning


def refuse_recurrent(net: nn.Module) -> None:
    """Complain about recurrences: their gates share one tensor that nobody can cut.

    Raises:
        NetError: It names the first of them.
    """
    cells = (nn.RNNBase, nn.RNNCellBase)
    for path, module in net.named_modules():
        if isinstance(module, cells):
            kind = type(module).__name__
            raise NetError(
                f"nets with {kind} layers cannot be pruned (here: {path or 'the net itself'}): "
                "give one of convolutions, linears and attention"
            )


def find_channel_dependencies(net: nn.Module, inputs: Any) -> list[ChannelDependency]:
    """All ties of a net that do not reach its output. The net is left in evaluation mode.

    Raises:
        NetError: Torch-Pruning cannot follow the net.
    """
    tp = import_pruning()
    refuse_recurrent(net)
    net.requires_grad_(True)
    graph = tp.DependencyGraph()
    graph.register_customized_layer(PackedSdpa, _make_sdpa_pruner(tp))
    ends: list[torch.Tensor] = []

    def call(module: nn.Module, given: Any) -> Any:
        leaves = pytree.tree_leaves(call_net(module, given))
        ends.extend(x for x in leaves if isinstance(x, torch.Tensor) and x.grad_fn is not None)
        return list(ends)

    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            graph.build_dependency(net, inputs, forward_fn=call, verbose=False)
            _count_steps(graph)
            roots = (tp.ops.TORCH_CONV, tp.ops.TORCH_LINEAR, tp.ops.TORCH_EMBED)
            flat = tuple(
                one for kind in roots for one in (kind if isinstance(kind, tuple) else (kind,))
            )
            found = list(graph.get_all_groups(root_module_types=flat))
            heads = _find_head_outputs(graph, net)
    except Exception as error:  # Torch-Pruning asserts, indexes and divides its way along
        text = " ".join(str(error).split())[:200]
        raise NetError(
            f"Torch-Pruning cannot follow this net: {type(error).__name__}: {text}"
        ) from error
    outputs = {id(end.grad_fn) for end in ends}
    ties = [tie for group in found for tie in _split_group(graph, group, outputs, tp)]
    return [_find_parts(net, tie) for tie in _join_heads(net, ties, heads)]


def _count_steps(graph: Any) -> None:
    """Torch-Pruning goes round in circles on some nets: let it end with an error instead."""
    left = [_MOST_STEPS]

    def count(triggers: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def ask(handler: Any) -> bool:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("its channels depend on each other in circles")
            return triggers(handler)

        return ask

    for node in graph.module2node.values():
        for dependency in node.dependencies:
            dependency.is_triggered_by = count(dependency.is_triggered_by)


# ---------------------------------------------------------------------------------------------
# From Torch-Pruning's groups to ties


def _split_group(graph: Any, group: Any, outputs: Any, tp: Any) -> list[ChannelDependency]:
    """A tie for all channels of a group's root that lead to the same places."""
    root = graph._module2name[group[0].dep.target.module]
    items: dict[tuple[str, str], Places] = {}
    lost = False
    for item in group.items:
        node, handler = item.dep.target, item.dep.handler
        side = _name_side(graph, handler)
        made = node.type == tp.ops.OPTYPE.OUTPUT or id(node.grad_fn) in outputs
        if made and side != "in":
            return []
        path = _find_path(graph, node.module)
        places = items.setdefault((path, side), {}) if path else {}
        for index, origin in zip(item.idxs, item.root_idxs, strict=False):
            lost = lost or (origin is None and bool(path))
            places.setdefault(origin, []).append(index)
    kinds: dict[Any, list[int]] = {}
    modules = {
        _find_path(graph, item.dep.target.module): item.dep.target.module for item in group.items
    }
    for path, module in modules.items():
        if isinstance(module, PackedSdpa):
            return _feed_heads(path, list(items), modules)
    if lost:
        return [ChannelDependency(root, (), (), why_whole="its channels are repeated for others")]
    for channel in range(len(group[0].idxs)):
        sign = tuple((key, len(places.get(channel, ()))) for key, places in items.items())
        kinds.setdefault(sign, []).append(channel)
    return [
        ChannelDependency(
            root,
            tuple(channels),
            tuple(
                (path, side, {c: places[c] for c in channels})
                for (path, side), places in items.items()
                if channels[0] in places
            ),
        )
        for channels in kinds.values()
    ]


def _feed_heads(
    sdpa: str, items: list[tuple[str, str]], modules: Mapping[str, Any]
) -> list[ChannelDependency]:
    """A tie for each layer that feeds an attention, whatever is told of its channels."""
    ties = []
    for path, side in items:
        if path == sdpa:
            continue
        if side != "out" or not isinstance(modules[path], nn.Linear):
            return [
                ChannelDependency(
                    path, (), (), why_whole="something stands between it and its heads"
                )
            ]
        channels = range(modules[path].out_features)
        places = {channel: [channel] for channel in channels}
        ties.append(
            ChannelDependency(path, tuple(channels), ((path, side, places), (sdpa, "in", {})))
        )
    return ties


def _name_side(graph: Any, handler: Any) -> str:
    out, inside = graph.is_out_channel_pruning_fn(handler), graph.is_in_channel_pruning_fn(handler)
    return "both" if out and inside else "out" if out else "in"


def _find_path(graph: Any, module: Any) -> str:
    """The name of a module or parameter of the net; empty for what Torch-Pruning made itself."""
    if isinstance(module, nn.Parameter):
        return str(graph._param_to_name[module])
    return str(graph._module2name.get(module) or "")


def _find_parts(net: nn.Module, tie: ChannelDependency) -> ChannelDependency:
    """Parts that groups of convolutions and norms, and heads, make of a tie's channels."""
    parts = [1]
    for path, _, places in tie.items:
        count = _count_parts(_get(net, path))
        if count > 1:
            # Parts are told by where a channel stands: it must stand where it does in the root.
            if any(found != [at] for at, found in enumerate(places.values())):
                return replace(tie, why_whole=f"{path} takes its channels in {count} parts")
            parts.append(count)
    most = max(parts)
    if any(most % count for count in parts) or len(tie.channels) % most:
        return replace(
            tie, why_whole=f"its channels stand in {' and '.join(map(str, parts))} parts"
        )
    if most > 1 and most == len(tie.channels):
        return replace(tie, why_whole="every one of its channels is a part of its own")
    return replace(tie, parts=most)


def _count_parts(module: Any) -> int:
    if isinstance(module, nn.GroupNorm):
        return module.num_groups
    if isinstance(module, nn.MultiheadAttention):
        return module.num_heads
    groups = int(getattr(module, "groups", 1)) if _is_conv(module) else 1
    return 1 if groups == getattr(module, "out_channels", 0) else groups


def _is_conv(module: Any) -> bool:
    return isinstance(module, torch.nn.modules.conv._ConvNd)


def _get(net: nn.Module, path: str) -> Any:
    """A module or parameter by its name."""
    found: Any = net
    for word in path.split(".") if path else ():
        found = getattr(found, word)
    return found


# ---------------------------------------------------------------------------------------------
# Attention that Joulecast builds: heads go whole


def _make_sdpa_pruner(tp: Any) -> Any:
    """Where Torch-Pruning stops: what goes in and what comes out are tied by heads alone."""

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


def _find_head_outputs(
    graph: Any, net: nn.Module
) -> dict[str, tuple[tuple[str, str, Places], ...]]:
    """What every attention that Joulecast built gives its channels to."""
    found = {}
    for path, module in net.named_modules():
        if isinstance(module, PackedSdpa) and module in graph.module2node:
            pruner = graph.get_pruner_of_module(module)
            channels = list(range(pruner.get_out_channels(module)))
            group = graph.get_pruning_group(module, pruner.prune_out_channels, channels)
            items: dict[tuple[str, str], Places] = {}
            for item in group.items:
                target = _find_path(graph, item.dep.target.module)
                if target:
                    places = items.setdefault((target, _name_side(graph, item.dep.handler)), {})
                    for index, origin in zip(item.idxs, item.root_idxs, strict=False):
                        places.setdefault(origin, []).append(index)
            found[path] = tuple((*key, places) for key, places in items.items())
    return found


def _join_heads(
    net: nn.Module, ties: list[ChannelDependency], heads: Any
) -> list[ChannelDependency]:
    """Ties that feed an attention become one that goes by heads."""
    feeders: dict[str, list[ChannelDependency]] = {}
    rest = []
    for tie in ties:
        fed = [path for path, side, _ in tie.items if path in heads and side == "in"]
        if fed:
            feeders.setdefault(fed[0], []).append(tie)
        else:
            rest.append(tie)
    return rest + [
        _join_one(_get(net, path), path, found, heads[path]) for path, found in feeders.items()
    ]


def _join_one(
    sdpa: PackedSdpa, path: str, feeders: list[ChannelDependency], outputs: Any
) -> ChannelDependency:
    width = sdpa.heads * sdpa.head_dim
    name = feeders[0].name
    alike = sdpa.heads == sdpa.kv_heads and sum(len(tie.channels) for tie in feeders) == 3 * width
    if not alike or any(len(tie.channels) % width for tie in feeders):
        return ChannelDependency(name, (), (), why_whole="its heads share keys and values")
    items: list[tuple[str, str, Places]] = list(outputs)
    for tie in feeders:
        for target, side, places in tie.items:
            if target != path:
                spread: Places = {channel: [] for channel in range(width)}
                for at, channel in enumerate(tie.channels):
                    spread[at % width] += places[channel]
                items.append((target, side, spread))
    channels = tuple(range(width))
    return ChannelDependency(name, channels, tuple(items), head_dim=sdpa.head_dim)
