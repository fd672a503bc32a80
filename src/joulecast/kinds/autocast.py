"""Derive which layers of a network get half-precision inputs under autocast.

Contractions return half precision; layer norms and embeddings return full precision; a sum is half
only if all its inputs are; all other operators keep the precision of their input. A layer that is
measured alone must get the precision it gets in its network, or it pays for casts that the network
does not make.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.kinds.kind_table import find_kind
from joulecast.records import Input, Layer, Op, Setup

HALF_PRECISIONS = ("bf16", "fp16")


def is_half_precision(setup: Setup) -> bool:
    """Return whether a setup computes in half precision, under autocast or throughout."""
    return setup.precision in HALF_PRECISIONS


def uses_autocast(setup: Setup) -> bool:
    """Return whether a setup trains under autocast; for inference, all weights are converted."""
    return is_half_precision(setup) and setup.phase == "train"


def list_half_inputs(layers: Sequence[Layer], data: Input) -> tuple[bool, ...]:
    """Return for every layer whether all its inputs are in half precision under autocast."""
    half_outputs: list[bool] = []
    half_inputs: list[bool] = []
    for index, layer in enumerate(layers):
        half = bool(layer.reads)
        for back in layer.reads:
            half = half and (half_outputs[index - back] if back <= index else data.half)
        half_inputs.append(half)
        half_outputs.append(_has_half_output(layer, half))
    return tuple(half_inputs)


def _has_half_output(layer: Layer, half: bool) -> bool:
    ops: tuple[Op, ...] = (layer, *layer.tail)
    for op in ops:
        precision = find_kind(op.kind).autocast(op.sizes)
        if precision != "input":
            half = precision == "half"
    return half
