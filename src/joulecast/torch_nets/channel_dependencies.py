"""Find channels that can only be removed together, with Torch-Pruning's dependency graph.

For every channel of a layer, a ChannelDependency lists the channels of other modules that must be
removed with it. Channels of one layer that other modules use differently are separate dependencies.
Nothing is removed here: ``channel_pruning`` tries what is found.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from joulecast.system.errors import MissingError, NetError
from joulecast.torch_nets.inputs import call_net
from joulecast.torch_nets.modules import PackedSdpa

ChannelIndices = dict[int, list[int]]
"""For each channel of the layer that computes it, the channels of another module."""

# Torch-Pruning's dependency queries; a network of a hundred layers takes a few thousand.
_MAX_QUERIES = 20_000


class CoupledModule(NamedTuple):
    """A module or parameter that shares channels with others.

    ``side`` is ``out``, ``in`` or ``both``.
    """

    path: str
    side: str
    indices: ChannelIndices


@dataclass(frozen=True)
class ChannelDependency:
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
    channels: tuple[int, ...]
    modules: tuple[CoupledModule, ...]
    partitions: int = 1
    head_dim: int = 0
    unprunable_reason: str = ""


def find_channel_dependencies(net: nn.Module, inputs: Any) -> list[ChannelDependency]:
    """Return all dependencies that do not reach the output. The module is left in eval mode.

    Args:
        net: A module; its weights may be on the meta device.
        inputs: Example inputs.

    Raises:
        NetError: Torch-Pruning cannot analyse the module.
    """
    tp = import_torch_pruning()
    check_no_recurrent(net)
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
            sdpa_outputs = _find_sdpa_outputs(graph, net)
    except Exception as error:  # Torch-Pruning raises AssertionError, IndexError and others
        text = " ".join(str(error).split())[:200]
        raise NetError(
            f"Torch-Pruning cannot analyse this network: {type(error).__name__}: {text}"
        ) from error
    output_nodes = {id(output.grad_fn) for output in outputs}
    dependencies: list[ChannelDependency] = []
    for group in groups:
        dependencies += _split_group(graph, group, output_nodes, tp)
    dependencies = _merge_by_sdpa(net, dependencies, sdpa_outputs)
    return [_find_partitions(net, dependency) for dependency in dependencies]


def import_torch_pruning() -> Any:
    """Return the package Torch-Pruning.

    Raises:
        MissingError: It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch_pruning
    except ImportError as error:
        raise MissingError("pruning needs Torch-Pruning: pip install 'joulecast[prune]'") from error
    return torch_pruning


def check_no_recurrent(net: nn.Module) -> None:
    """Reject recurrent layers: their gates share one tensor that Torch-Pruning cannot prune.

    Raises:
        NetError: With the name of the first recurrent layer.
    """
    for path, module in net.named_modules():
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
            kind = type(module).__name__
            raise NetError(
                f"networks with {kind} layers cannot be pruned (here: {path or 'the module'}): "
                "give a network of convolutions, linear layers and attention"
            )


def get_attribute(net: nn.Module, path: str) -> Any:
    """Return a module or parameter by its qualified name."""
    found: Any = net
    for name in path.split(".") if path else ():
        found = getattr(found, name)
    return found


def _limit_queries(graph: Any) -> None:
    """Make Torch-Pruning raise instead of looping forever, as it does on some networks."""
    left = [_MAX_QUERIES]

    def limit(is_triggered_by: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def query(handler: Any) -> bool:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("its channels depend on each other in a cycle")
            return is_triggered_by(handler)

        return query

    for node in graph.module2node.values():
        for dependency in node.dependencies:
            dependency.is_triggered_by = limit(dependency.is_triggered_by)


# ---------------------------------------------------------------------------------------------
# From Torch-Pruning's groups to dependencies


def _split_group(graph: Any, group: Any, output_nodes: Any, tp: Any) -> list[ChannelDependency]:
    """Split a group by which modules use the channels of its root."""
    root = graph._module2name[group[0].dep.target.module]
    indices_of: dict[tuple[str, str], ChannelIndices] = {}
    has_unmapped = False
    for item in group.items:
        node = item.dep.target
        side = _name_side(graph, item.dep.handler)
        is_output = node.type == tp.ops.OPTYPE.OUTPUT or id(node.grad_fn) in output_nodes
        if is_output and side != "in":
            return []
        path = _find_path(graph, node.module)
        indices = indices_of.setdefault((path, side), {}) if path else {}
        for index, root_index in zip(item.idxs, item.root_idxs, strict=True):
            has_unmapped = has_unmapped or (root_index is None and bool(path))
            indices.setdefault(root_index, []).append(index)
    modules = {
        _find_path(graph, item.dep.target.module): item.dep.target.module for item in group.items
    }
    for path, module in modules.items():
        if isinstance(module, PackedSdpa):
            return _list_sdpa_inputs(path, list(indices_of), modules)
    if has_unmapped:
        reason = "its channels are repeated for other modules"
        return [ChannelDependency(root, (), (), unprunable_reason=reason)]
    by_use: dict[Any, list[int]] = {}
    for channel in range(len(group[0].idxs)):
        use = tuple((key, len(indices.get(channel, ()))) for key, indices in indices_of.items())
        by_use.setdefault(use, []).append(channel)
    dependencies = []
    for channels in by_use.values():
        coupled = tuple(
            CoupledModule(path, side, {channel: indices[channel] for channel in channels})
            for (path, side), indices in indices_of.items()
            if channels[0] in indices
        )
        dependencies.append(ChannelDependency(root, tuple(channels), coupled))
    return dependencies


def _name_side(graph: Any, handler: Any) -> str:
    is_out = graph.is_out_channel_pruning_fn(handler)
    is_in = graph.is_in_channel_pruning_fn(handler)
    return "both" if is_out and is_in else "out" if is_out else "in"


def _find_path(graph: Any, module: Any) -> str:
    """Return the name of a module or parameter; empty for nodes that Torch-Pruning added."""
    if isinstance(module, nn.Parameter):
        return str(graph._param_to_name[module])
    return str(graph._module2name.get(module) or "")


def _find_partitions(net: nn.Module, dependency: ChannelDependency) -> ChannelDependency:
    """Add the partitions that grouped convolutions, group norms and heads require."""
    counts = [1]
    for path, _, indices in dependency.modules:
        count = _count_partitions(get_attribute(net, path))
        if count > 1:
            # A partition is a range of indices, so channels must keep their index everywhere.
            if any(index != [position] for position, index in enumerate(indices.values())):
                reason = f"{path} divides its channels into {count} groups"
                return replace(dependency, unprunable_reason=reason)
            counts.append(count)
    most = max(counts)
    if any(most % count for count in counts) or len(dependency.channels) % most:
        reason = f"its channels are divided into {' and '.join(map(str, counts))} groups"
        return replace(dependency, unprunable_reason=reason)
    if most > 1 and most == len(dependency.channels):
        return replace(dependency, unprunable_reason="every channel is a group by itself")
    return replace(dependency, partitions=most)


def _count_partitions(module: Any) -> int:
    if isinstance(module, nn.GroupNorm):
        return module.num_groups
    if isinstance(module, nn.MultiheadAttention):
        return module.num_heads
    is_conv = isinstance(module, torch.nn.modules.conv._ConvNd)
    groups = int(getattr(module, "groups", 1)) if is_conv else 1
    return 1 if groups == getattr(module, "out_channels", 0) else groups


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
) -> list[ChannelDependency]:
    """Return a dependency for each linear layer before an attention, whatever its channels do."""
    found = []
    for path, side in members:
        if path == sdpa:
            continue
        if side != "out" or not isinstance(modules[path], nn.Linear):
            reason = "another module lies between it and its attention"
            return [ChannelDependency(path, (), (), unprunable_reason=reason)]
        channels = range(modules[path].out_features)
        indices = {channel: [channel] for channel in channels}
        coupled = (CoupledModule(path, side, indices), CoupledModule(sdpa, "in", {}))
        found.append(ChannelDependency(path, tuple(channels), coupled))
    return found


def _find_sdpa_outputs(graph: Any, net: nn.Module) -> dict[str, tuple[CoupledModule, ...]]:
    """Return the modules that read the output channels of each PackedSdpa."""
    found = {}
    for path, module in net.named_modules():
        if isinstance(module, PackedSdpa) and module in graph.module2node:
            pruner = graph.get_pruner_of_module(module)
            channels = list(range(pruner.get_out_channels(module)))
            group = graph.get_pruning_group(module, pruner.prune_out_channels, channels)
            indices_of: dict[tuple[str, str], ChannelIndices] = {}
            for item in group.items:
                target = _find_path(graph, item.dep.target.module)
                if target:
                    key = (target, _name_side(graph, item.dep.handler))
                    indices = indices_of.setdefault(key, {})
                    for index, root_index in zip(item.idxs, item.root_idxs, strict=True):
                        indices.setdefault(root_index, []).append(index)
            found[path] = tuple(CoupledModule(*key, indices) for key, indices in indices_of.items())
    return found


def _merge_by_sdpa(
    net: nn.Module,
    dependencies: list[ChannelDependency],
    sdpa_outputs: Mapping[str, tuple[CoupledModule, ...]],
) -> list[ChannelDependency]:
    """Merge the dependencies before each attention into one that is removed by heads."""
    before: dict[str, list[ChannelDependency]] = {}
    others = []
    for dependency in dependencies:
        modules = dependency.modules
        sdpas = [m.path for m in modules if m.path in sdpa_outputs and m.side == "in"]
        if sdpas:
            before.setdefault(sdpas[0], []).append(dependency)
        else:
            others.append(dependency)
    return others + [
        _merge_heads(get_attribute(net, path), path, found, sdpa_outputs[path])
        for path, found in before.items()
    ]


def _merge_heads(
    sdpa: PackedSdpa,
    path: str,
    before: list[ChannelDependency],
    outputs: Sequence[CoupledModule],
) -> ChannelDependency:
    width = sdpa.heads * sdpa.head_dim
    name = before[0].name
    has_equal_heads = sdpa.heads == sdpa.kv_heads
    counts = [len(dependency.channels) for dependency in before]
    is_complete = sum(counts) == 3 * width and not any(count % width for count in counts)
    if not has_equal_heads or not is_complete:
        return ChannelDependency(name, (), (), unprunable_reason="its heads share keys and values")
    modules = list(outputs)
    for dependency in before:
        for target, side, indices in dependency.modules:
            if target != path:
                merged: ChannelIndices = {channel: [] for channel in range(width)}
                for position, channel in enumerate(dependency.channels):
                    merged[position % width] += indices[channel]
                modules.append(CoupledModule(target, side, merged))
    return ChannelDependency(name, tuple(range(width)), tuple(modules), head_dim=sdpa.head_dim)
