"""Build an ``nn.Module`` from a Network.

Each layer becomes a BuiltLayer, each group of layers a Block, and the whole a BuiltNet that passes
results between them. Reading a built network returns the same Network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from joulecast.errors import InputError, NetError
from joulecast.kinds import find_kind, input_shape, list_checkpoint_segments, output_shape
from joulecast.records import Layer, Network
from joulecast.runtimes.input_fits import Shape, concat_channels_to_fit, is_op_join
from joulecast.runtimes.torch.checkpointed_layers import SegmentWiring, plan_segment, run_segment
from joulecast.runtimes.torch.input_adapters import choose_adapters, fit_channels
from joulecast.runtimes.torch.memory_format import (
    convert_weights_to_channels_last,
    view_transposed,
)
from joulecast.runtimes.torch.op_builders import JOINS, build_op
from joulecast.runtimes.wiring import LayerWiring, plan_wiring


def build_net(network: Network) -> nn.Module:
    """Return the module that a Network describes, with fresh weights.

    Raises:
        NetError: The network is empty, or was read from a module that cannot be rebuilt.
    """
    if not network.layers:
        raise NetError("an empty network cannot be built: it has no layers")
    if not network.buildable:
        raise NetError(
            f"{network.name or 'this network'} was read from a module or file that cannot be "
            "rebuilt from its layers: give the module itself (file.py:make_net), or run an ONNX "
            "file with --on onnx:cpu"
        )
    try:
        net = BuiltNet(network)
    except (InputError, RuntimeError, ValueError) as error:
        raise NetError(f"{network.name or 'the network'} cannot be built: {error}") from error
    for layer, module in zip(network.layers, net.layer_modules(), strict=True):
        module.requires_grad_(layer.trains)
    return net


def build_seeded(network: Network, seed: int) -> nn.Module:
    """Return the module with weights drawn from ``seed``; the global generator is not advanced."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_net(network)


class BuiltNet(nn.Module):
    """All layers in call order; a result is released after its last reader."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self.plan = _plan_calls(network)
        self.starts: list[int] = []
        ends = dict(network.groups)
        layers = _build_layers(network, self.plan.wiring)
        index = 0
        while index < len(network.layers):
            self.starts.append(index)
            stop = ends.get(index, index + 1)
            if index in ends:
                self.parts.append(Block(layers[index:stop], self.plan, index))
            else:
                self.parts.append(layers[index])
            index = stop

    def layer_modules(self) -> list[nn.Module]:
        """Return the module of every layer, in order."""
        modules: list[nn.Module] = []
        for part in self.parts:
            modules += list(part.layers) if isinstance(part, Block) else [part]
        return modules

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results: list[Any] = [x]
        _run_parts(self.parts, self.starts, self.plan, results)
        last: torch.Tensor = results[-1]
        return last


class Block(nn.Module):
    """A repeated group of layers. Reading recognises it by its class name."""

    def __init__(self, layers: Sequence[BuiltLayer], plan: CallPlan, start: int) -> None:
        super().__init__()
        self.plan = plan
        self.starts = list(range(start, start + len(layers)))
        self.layers = nn.ModuleList(layers)

    def forward(self, results: list[Any]) -> None:
        _run_parts(self.layers, self.starts, self.plan, results)


class BuiltLayer(nn.Module):
    """One layer: a join of its inputs, its operator and its tail.

    Args:
        layer: The layer to build.
        shapes: Sample shapes of its inputs, which may differ from those that it expects.
    """

    def __init__(self, layer: Layer, shapes: Sequence[Shape] = ()) -> None:
        super().__init__()
        shape = input_shape(layer)
        self.adapters = choose_adapters(layer, shapes)
        self.concat_channels = concat_channels_to_fit(layer, shapes)
        self.join = None if is_op_join(layer) else JOINS.get(layer.join)
        self.transposed = layer.transposed
        self.op = build_op(layer, shape)
        if layer.channels_last_weights:
            convert_weights_to_channels_last(self.op)
        shape = find_kind(layer.kind).out_shape(layer.sizes, shape)
        tail = []
        for op in layer.tail:
            tail.append(build_op(op, shape))
            shape = find_kind(op.kind).out_shape(op.sizes, shape)
        self.tail = nn.ModuleList(tail)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if self.adapters:
            inputs = tuple(
                adapt(x) if adapt else x for adapt, x in zip(self.adapters, inputs, strict=True)
            )
        if self.concat_channels:
            inputs = fit_channels(inputs, self.concat_channels)
        if self.transposed:
            inputs = tuple(
                view_transposed(x) if i in self.transposed else x for i, x in enumerate(inputs)
            )
        x = self.op(self.join(*inputs)) if self.join else self.op(*inputs)
        for op in self.tail:
            x = op(x)
        return x


@dataclass(frozen=True)
class CallPlan:
    """How the layers of a network are called: what each reads, and which are checkpointed.

    Attributes:
        segments: Layers that are checkpointed together, by the number of the first.
    """

    wiring: Sequence[LayerWiring]
    segments: Mapping[int, SegmentWiring]


def _plan_calls(network: Network) -> CallPlan:
    wiring = plan_wiring(network)
    segments = [plan_segment(one, wiring) for one in list_checkpoint_segments(network)]
    return CallPlan(wiring, {one.segment.start: one for one in segments})


def _run_parts(parts: nn.ModuleList, starts: list[int], plan: CallPlan, results: list[Any]) -> None:
    """Call layers and blocks one after another; ``starts`` has the number of their first layer."""
    segments = plan.segments if parts.training and torch.is_grad_enabled() else {}
    for position, (start, part) in enumerate(zip(starts, parts, strict=True)):
        if len(results) > start + 1:
            # It ran in a segment with those before it.
            continue
        if isinstance(part, Block):
            part(results)
        elif start in segments:
            segment = segments[start]
            run_segment(segment, list(parts)[position : position + len(segment.layers)], results)
        else:
            _run_layer(plan.wiring[start], part, results)


def _run_layer(wiring: LayerWiring, layer: nn.Module, results: list[Any]) -> None:
    """Call one layer, store its result, and release results that no later layer reads."""
    result = layer(*[results[read] for read in wiring.reads])
    for released in wiring.last_reads:
        results[released] = None
    results.append(result)


def _build_layers(network: Network, wiring: Sequence[LayerWiring]) -> list[BuiltLayer]:
    shapes = [network.input.shape, *map(output_shape, network.layers)]
    return [
        BuiltLayer(layer, [shapes[read] for read in inputs.reads])
        for layer, inputs in zip(network.layers, wiring, strict=True)
    ]
