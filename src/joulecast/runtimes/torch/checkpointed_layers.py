"""Run layers of a built network under activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from joulecast.kinds import CheckpointSegment
from joulecast.runtimes.wiring import LayerWiring


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


def plan_segment(segment: CheckpointSegment, wiring: Sequence[LayerWiring]) -> SegmentWiring:
    """Return what a segment of a network with this wiring reads and gives."""
    inside = tuple(wiring[segment.start : segment.stop])
    inputs = {read for layer in inside for read in layer.reads if read <= segment.start}
    later = {read for layer in wiring[segment.stop :] for read in layer.reads}
    given = range(segment.start + 1, segment.stop + 1)
    outputs = [result for result in given if result in later or result == len(wiring)]
    return SegmentWiring(segment, inside, tuple(sorted(inputs)), tuple(outputs))


def run_segment(wiring: SegmentWiring, layers: Sequence[nn.Module], results: list[Any]) -> None:
    """Call the layers of a segment and store the results that others read.

    Nothing is kept of the layers inside; backward runs them forward again.
    """
    # Compiled functions must not change what lies outside of them.
    first = wiring.segment.start

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
    keeps_random = torch.compiler.is_compiling() or not _is_capturing()
    return checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=keeps_random, **kwargs
    )


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
