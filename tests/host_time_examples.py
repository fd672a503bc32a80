"""Layers of many structures, and eager steps whose host time is known."""

import math
import random

from joulecast.estimators.additive.layers import set_up_layer
from joulecast.estimators.additive.observations import DecomposedObservation
from joulecast.operators import make_layer, make_op
from joulecast.records import Setup
from joulecast.variants import REPEATED, Block

START_S = 400e-6
CALLS_S = (20e-6, 55e-6, 90e-6, 70e-6, 12e-6, 25e-6)
SETUPS = [
    Setup(phase=phase, precision=precision)
    for phase in ("train", "inference")
    for precision in ("tf32", "bf16")
]
OPERATORS = [
    ("linear", {"cin": 64, "cout": 64}),
    ("linear", {"cin": 64, "cout": 64, "bias": 0}),
    ("conv2d", {"cin": 8, "cout": 8, "space": 9, "kernel": 3, "padding": 1}),
    ("layer_norm", {"shape": (64,)}),
    ("elementwise", {"fn": "relu", "shape": (64,)}),
]
TAILS = [(), ("relu",), ("gelu", "tanh"), ("relu", "silu", "tanh")]


def list_layers():
    """Return layers of many structures, single layers and blocks."""
    layers = [
        make_layer(kind, tuple(make_op("elementwise", fn=fn) for fn in tail), **sizes)
        for kind, sizes in OPERATORS
        for tail in TAILS
    ]
    blocks = [Block("hidden", (layer,)) for layer in layers]
    blocks += [Block(REPEATED, tuple(layers[at : at + 5])) for at in range(0, len(layers), 3)]
    return [set_up_layer(block, setup) for block in blocks for setup in SETUPS]


def true_start(layer):
    return START_S if layer.phase == "train" else 0.0


def true_time(layer):
    return sum(calls * call_s for calls, call_s in zip(layer.host_calls, CALLS_S, strict=True))


def observe_host_bound(layer, count, host_s, is_isolated=True):
    """Return an eager step that waits for its host."""
    key = f"{layer.key} {count}"
    return DecomposedObservation(
        {layer: count}, "eager", None, 0.0, host_s, 0.0, host_s, is_isolated, key
    )


def observe_all(noise, seed=3):
    rng = random.Random(seed)
    found = []
    for layer in list_layers():
        copies = float(rng.choice((2, 4, 8)))
        host_s = (true_start(layer) + copies * true_time(layer)) * math.exp(rng.gauss(0.0, noise))
        found.append(observe_host_bound(layer, copies, host_s))
    return found
