"""Build an ``nn.Module`` from a Network.

Each layer becomes a BuiltLayer, each group of layers a BuiltBlock, and the whole a BuiltNet that
passes results between them. Reading a built network returns the same Network. Layers that are
marked as recomputed run under activation checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from joulecast.operators import (
    CheckpointSegment,
    Shape,
    find_kind,
    input_shape,
    list_checkpoint_segments,
    output_shape,
)
from joulecast.operators.building import (
    LayerWiring,
    concat_channels_to_fit,
    is_op_join,
    plan_wiring,
    refuse_unbuildable,
)
from joulecast.records import Layer, Network
from joulecast.system.errors import InputError, NetError, arg
from joulecast.torch_nets.inputs import (
    choose_adapters,
    convert_weights_to_channels_last,
    fit_channels,
    view_transposed,
)
from joulecast.torch_nets.modules import JOINS, build_op


def build_net(network: Network) -> nn.Module:
    """Return the module that a Network describes, with fresh weights.

    Raises:
        NetError: The network is empty, or was read from a module that cannot be rebuilt.
    """
    as_file = f"run an ONNX file with {arg('on', 'onnx:cpu')}"
    advice = f"give the module itself (file.py:make_net), or {as_file}"
    refuse_unbuildable(network, advice)
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
        wiring = plan_wiring(network)
        segments = [_plan_segment(one, wiring) for one in list_checkpoint_segments(network)]
        self.plan = CallPlan(wiring, {one.segment.start: one for one in segments})
        shapes = [network.input.shape, *map(output_shape, network.layers)]
        layers = [
            BuiltLayer(layer, index, [shapes[read] for read in wiring[index].reads])
            for index, layer in enumerate(network.layers)
        ]
        ends = dict(network.groups)
        start = 0
        while start < len(layers):
            stop = ends.get(start, start + 1)
            group = layers[start:stop]
            self.parts.append(BuiltBlock(group, self.plan) if start in ends else group[0])
            start = stop

    def layer_modules(self) -> list[BuiltLayer]:
        """Return the module of every layer, in order."""
        return [module for module in self.modules() if isinstance(module, BuiltLayer)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results: list[Any] = [x]
        _run_parts(self.parts, self.plan, results)
        last: torch.Tensor = results[-1]
        return last


class BuiltBlock(nn.Module):
    """A repeated group of layers. Reading recognises it by its class name."""

    def __init__(self, layers: Sequence[BuiltLayer], plan: CallPlan) -> None:
        super().__init__()
        self.plan = plan
        self.start = layers[0].start
        self.layers = nn.ModuleList(layers)

    def forward(self, results: list[Any]) -> None:
        _run_parts(self.layers, self.plan, results)


class BuiltLayer(nn.Module):
    """One layer: a join of its inputs, its operator and its tail.

    Args:
        start: Its number in the network.
        shapes: Sample shapes of its inputs.
    """

    def __init__(self, layer: Layer, start: int, shapes: Sequence[Shape]) -> None:
        super().__init__()
        self.start = start
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


def _run_parts(parts: nn.ModuleList, plan: CallPlan, results: list[Any]) -> None:
    """Call layers and blocks one after another."""
    segments = plan.segments if parts.training and torch.is_grad_enabled() else {}
    for position, part in enumerate(parts):
        start: Any = part.start
        if len(results) > start + 1:
            # It ran in a segment with those before it.
            continue
        if isinstance(part, BuiltBlock):
            part(results)
        elif start in segments:
            segment = segments[start]
            _run_segment(segment, list(parts)[position : position + len(segment.layers)], results)
        else:
            wiring = plan.wiring[start]
            result = part(*[results[read] for read in wiring.reads])
            for released in wiring.last_reads:
                results[released] = None
            results.append(result)


@dataclass(frozen=True)
class SegmentWiring:
    """What the layers of a segment exchange with the rest of their network.

    Attributes:
        layers: What each layer reads.
        inputs: Results from outside that the segment reads.
        outputs: Results of the segment that are read outside of it.
    """

    segment: CheckpointSegment
    layers: tuple[LayerWiring, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def _plan_segment(segment: CheckpointSegment, wiring: Sequence[LayerWiring]) -> SegmentWiring:
    """Return what a segment of a network with this wiring reads and gives."""
    inside = tuple(wiring[segment.start : segment.stop])
    inputs = {read for layer in inside for read in layer.reads if read <= segment.start}
    later = {read for layer in wiring[segment.stop :] for read in layer.reads}
    given = range(segment.start + 1, segment.stop + 1)
    outputs = [result for result in given if result in later or result == len(wiring)]
    return SegmentWiring(segment, inside, tuple(sorted(inputs)), tuple(outputs))


def _run_segment(wiring: SegmentWiring, layers: Sequence[nn.Module], results: list[Any]) -> None:
    """Call the layers of a segment and store the results that others read.

    Nothing is kept of the layers inside; backward runs them forward again.
    """
    first = wiring.segment.start

    # Compiled functions must not change what lies outside of them.
    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        known = dict(zip(wiring.inputs, inputs, strict=True))
        for offset, (reads, layer) in enumerate(zip(wiring.layers, layers, strict=True)):
            known[first + offset + 1] = layer(*[known[read] for read in reads.reads])
        return tuple([known[output] for output in wiring.outputs])

    given = [results[read] for read in wiring.inputs]
    # Layers that are marked run again as a whole.
    stops = set_checkpoint_early_stop(False) if wiring.segment.repeats_last else nullcontext()
    with nullcontext() if torch.compiler.is_compiling() else stops:
        given_out = run_checkpointed(run, *given)
    outputs = dict(zip(wiring.outputs, given_out, strict=True))
    for layer in wiring.layers:
        for released in layer.last_reads:
            if released <= first:
                results[released] = None
    results += [outputs.get(first + offset + 1) for offset in range(len(layers))]


def run_checkpointed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of which only the inputs are kept for backward."""
    # Random states cannot be read while a CUDA graph is captured; dropout then draws other masks.
    is_capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    keeps_random = torch.compiler.is_compiling() or not is_capturing
    return checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=keeps_random, **kwargs
    )
