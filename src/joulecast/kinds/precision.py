"""What autocast does to the numbers that flow through a net: which layers read half precision.

Products give half precision, norms over features and tables of words give full precision, sums
give half only of halves, everything else hands on what it gets. A layer that runs alone has to be
fed as it is in its net, or it pays for casts that the net never makes.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.records import Input, Layer, Op, Setup

HALF_PRECISIONS = ("bf16", "fp16")
_HALVES = ("conv", "linear", "matmul", "sdpa", "attention", "lstm", "gru", "rnn")
_FULLS = ("layer_norm", "group_norm", "rms_norm", "embedding")
_FULL_FUNCTIONS = ("softmax", "log_softmax", "softplus")


def is_half(setup: Setup) -> bool:
    """Whether a setup trains under autocast to half precision."""
    return setup.precision in HALF_PRECISIONS


def list_half_inputs(layers: Sequence[Layer], data: Input) -> tuple[bool, ...]:
    """For every layer whether all it reads arrives in half precision under autocast."""
    gives: list[bool] = []
    reads: list[bool] = []
    for index, layer in enumerate(layers):
        half = bool(layer.reads)
        for back in layer.reads:
            half = half and (gives[index - back] if back <= index else data.half)
        reads.append(half)
        gives.append(_hand_on(layer, half))
    return tuple(reads)


def _hand_on(layer: Layer, half: bool) -> bool:
    ops: tuple[Op, ...] = (layer, *layer.tail)
    for op in ops:
        if op.kind.startswith(_HALVES):
            half = True
        elif op.kind in _FULLS or _is_full_function(op):
            half = False
    return half


def _is_full_function(op: Op) -> bool:
    return op.kind == "elementwise" and op.sizes["fn"] in _FULL_FUNCTIONS
