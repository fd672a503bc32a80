"""What layers and networks cost: the work of a step, its parameters, its memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Tuple

from joulecast.kinds.make import input_shape, output_shape
from joulecast.kinds.table import find_kind
from joulecast.kinds.work import NO_WORK, WEIGHT_BYTES, Context, Shape, StepWork, Work
from joulecast.records import Layer, Network, Setup

# Of a loss: passes over its elements, launches. Nobody knows what a user's own one does.
_LOSSES = {"cross_entropy": (7, 5), "mse": (6, 4), "own": (7, 5)}
# Of an update, per parameter: elements moved, elements kept beside weight and gradient; launches.
_UPDATES = {"sgd": (5, 1, 3), "adam": (7, 2, 4), "adamw": (7, 2, 1)}


def layer_work(layer: Layer, setup: Setup) -> StepWork:
    """Work of one layer in one step: its operator and its tail, times its calls."""
    if layer.parts:
        return sum((layer_work(part, setup) for part in layer.parts), StepWork())
    training = setup.phase == "train"
    item_bytes = 2 if setup.precision in ("bf16", "fp16") else 4
    shape = input_shape(layer)
    grad = training and layer.input_grad
    total = StepWork()
    for op in (layer, *layer.tail):
        kind = find_kind(op.kind)
        context = Context(setup.batch, item_bytes, training and layer.trains, grad)
        weights = () if layer.tied else kind.params(op.sizes, shape)
        forward = kind.forward(op.sizes, shape, context)
        backward = kind.backward(op.sizes, shape, context) if training else NO_WORK
        total += StepWork(
            (forward if training else replace(forward, memory_bytes=0.0)).times(layer.calls),
            backward.times(layer.calls),
            _update_work(weights, setup, context.trains),
            sum(weights),
        )
        # Behind an operator whose weights train, or that got a gradient, gradients flow on.
        grad = grad or (context.trains and bool(weights))
        shape = kind.out_shape(op.sizes, shape)
    return total


def network_work(network: Network, setup: Setup) -> StepWork:
    """Work of a whole network in one step, the loss aside."""
    return sum((layer_work(layer, setup) for layer in network.layers), StepWork())


def loss_work(shape: Shape, setup: Setup) -> Work:
    """Forward and backward of a loss over outputs of this shape: elementwise passes in fp32."""
    if setup.phase != "train":
        return NO_WORK
    passes, launches = _LOSSES[setup.loss]
    return Work(size_bytes=float(setup.batch * math.prod(shape) * passes * 4), launches=launches)


def peak_memory(network: Network, setup: Setup) -> int:
    """Bytes that training holds at its peak: weights, gradients, state, and what backward needs."""
    works = [layer_work(layer, setup) for layer in network.layers]
    if not works:
        return 0
    kept = sum(work.forward.memory_bytes for work in works)
    passing = max(setup.batch * 4 * math.prod(output_shape(layer)) for layer in network.layers)
    held = sum(work.update.memory_bytes for work in works)
    return int(kept + 2 * passing + held + setup.batch * 4 * math.prod(network.input.shape))


def _update_work(weights: Tuple[int, ...], setup: Setup, trains: bool) -> Work:
    params = sum(weights)
    if not trains:
        return Work(memory_bytes=float(params * WEIGHT_BYTES))
    moved, kept, launches = _UPDATES[setup.optimizer]
    return Work(
        size_bytes=float(params * moved * WEIGHT_BYTES),
        launches=launches * len(weights),
        memory_bytes=float(params * (2 + kept) * WEIGHT_BYTES),
    )
