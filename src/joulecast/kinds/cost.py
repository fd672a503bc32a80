"""Count the work of layers and networks in one step, their parameters and their memory."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from joulecast.kinds.autocast import is_half_precision
from joulecast.kinds.kind_table import find_kind
from joulecast.kinds.operators import input_shape, output_shape
from joulecast.kinds.work import NO_WORK, WEIGHT_BYTES, Shape, StepWork, Work, WorkContext
from joulecast.records import Layer, Network, Op, Setup

# Passes over the elements and launches of each loss; a user's own loss is assumed to be typical.
_LOSSES = {"cross_entropy": (7, 5), "mse": (6, 4), "own": (7, 5)}
# Updates: elements moved per parameter, elements kept besides weight and gradient, and launches per
# weight tensor.
_UPDATES = {"sgd": (5, 1, 3), "adam": (7, 2, 4), "adamw": (7, 2, 1)}
UPDATE_LAUNCHES = {name: launches for name, (_, _, launches) in _UPDATES.items()}


def layer_work(layer: Layer, setup: Setup) -> StepWork:
    """Return the work of a layer in one step: its operator and its tail, times its calls."""
    if layer.parts:
        return sum((layer_work(part, setup) for part in layer.parts), StepWork())
    training = setup.phase == "train"
    item_bytes = 2 if is_half_precision(setup) else 4
    flags = training and layer.trains, training and layer.input_grad
    context = WorkContext(setup.batch, item_bytes, *flags)
    work = _chain_work((layer, *layer.tail), input_shape(layer), context, setup, layer.tied)
    if layer.transposed:
        copied = find_kind(layer.kind).copy_transposed(layer.sizes, input_shape(layer), context)
        work = replace(work, forward=work.forward + copied)
    return work if layer.calls == 1 else _repeat(work, layer.calls)


def network_work(network: Network, setup: Setup) -> StepWork:
    """Return the work of a network in one step, without the loss."""
    return sum((layer_work(layer, setup) for layer in network.layers), StepWork())


def loss_work(shape: Shape, setup: Setup) -> Work:
    """Return the work of a loss on outputs of this shape: elementwise passes in fp32."""
    if setup.phase != "train":
        return NO_WORK
    passes, launches = _LOSSES[setup.loss]
    return Work(size_bytes=float(setup.batch * math.prod(shape) * passes * 4), launches=launches)


def peak_memory(network: Network, setup: Setup) -> int:
    """Return the peak memory of training in bytes.

    It holds weights, gradients, optimizer state and the activations kept for the backward pass.
    """
    works = [layer_work(layer, setup) for layer in network.layers]
    if not works:
        return 0
    kept = sum(work.forward.memory_bytes for work in works)
    passing = max(setup.batch * 4 * math.prod(output_shape(layer)) for layer in network.layers)
    held = sum(work.update.memory_bytes for work in works)
    return int(kept + 2 * passing + held + setup.batch * 4 * math.prod(network.input.shape))


def _chain_work(
    ops: tuple[Op, ...], shape: Shape, context: WorkContext, setup: Setup, tied: bool
) -> StepWork:
    """Return the work of operators that follow each other."""
    op, rest = ops[0], ops[1:]
    work = _op_work(op, shape, context, setup, tied)
    if not rest:
        return work
    # After an operator whose weights train, or whose input gets a gradient, inputs get gradients.
    if not context.input_grad and context.trains and work.params:
        context = replace(context, input_grad=True)
    next_shape = find_kind(op.kind).out_shape(op.sizes, shape)
    return work + _tail_work(rest, next_shape, context, setup, tied)


# Networks of many widths repeat the same few tails on the same few shapes.
_tail_work = lru_cache(maxsize=4096)(_chain_work)


def _op_work(op: Op, shape: Shape, context: WorkContext, setup: Setup, tied: bool) -> StepWork:
    kind = find_kind(op.kind)
    weights = () if tied else kind.params(op.sizes, shape)
    update = _update_work(weights, setup, context.trains)
    forward = kind.forward(op.sizes, shape, context)
    if setup.phase != "train":
        return StepWork(replace(forward, memory_bytes=0.0), NO_WORK, update, sum(weights))
    return StepWork(forward, kind.backward(op.sizes, shape, context), update, sum(weights))


def _repeat(work: StepWork, calls: int) -> StepWork:
    """Return the work of several calls; weights are updated once."""
    return replace(work, forward=work.forward.times(calls), backward=work.backward.times(calls))


def _update_work(weights: tuple[int, ...], setup: Setup, trains: bool) -> Work:
    params = sum(weights)
    if not trains:
        return Work(memory_bytes=float(params * WEIGHT_BYTES))
    moved, kept, launches = _UPDATES[setup.optimizer]
    return Work(
        size_bytes=float(params * moved * WEIGHT_BYTES),
        launches=launches * len(weights),
        memory_bytes=float(params * (2 + kept) * WEIGHT_BYTES),
    )
