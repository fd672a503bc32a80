"""Count the work of layers and networks in one step: FLOPs, bytes, launches, memory, host calls.

Also how autocast and activation checkpointing change it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

from joulecast.operators.kind import NO_WORK, WEIGHT_BYTES, Shape, StepWork, Work, WorkContext
from joulecast.operators.operators import find_kind, input_shape, output_shape
from joulecast.records import INT8_PRECISIONS, Input, Layer, Network, Op, Setup
from joulecast.system.errors import InputError, arg

# Passes over the elements and launches of each loss; a user's own loss is assumed to be typical.
_LOSSES = {"cross_entropy": (7, 5), "mse": (6, 4), "own": (7, 5)}
# Updates: elements moved per parameter, elements kept besides weight and gradient, and launches per
# weight tensor.
_UPDATES = {"sgd": (5, 1, 3), "adam": (7, 2, 4), "adamw": (7, 2, 1)}
# Adding a gradient to those of earlier batches reads both and writes their sum.
_ADD_GRADIENT_MOVES = 3
# A cast reads four bytes of each element and writes two, or the reverse.
_CAST_BYTES = 6
_ANY = Setup(batch=1)
UPDATE_LAUNCHES = {name: launches for name, (_, _, launches) in _UPDATES.items()}


def layer_work(layer: Layer, setup: Setup, half_input: bool | None = None) -> StepWork:
    """Return the work of a layer in one step: its operator and its tail, times its calls.

    Args:
        layer: The layer.
        setup: How it is trained.
        half_input: Whether its input is in half precision under autocast. Operators then work in
            the precision they have under autocast, and casts count; None counts all of them in
            half precision without casts.
    """
    if layer.parts:
        return sum((layer_work(part, setup) for part in layer.parts), StepWork())
    return _count_layer_work(layer, setup, half_input if uses_autocast(setup) else None)


def network_work(network: Network, setup: Setup) -> StepWork:
    """Return the work of a network in one step, without the loss."""
    return sum((layer_work(layer, setup) for layer in network.layers), StepWork())


def count_gradients(layer: Layer, setup: Setup) -> int:
    """Return the number of weights of a layer that get a gradient, each counted once."""
    if layer.parts:
        return sum(count_gradients(part, setup) for part in layer.parts)
    return layer_work(layer, setup).params if layer.trains and setup.phase == "train" else 0


def loss_work(shape: Shape, setup: Setup) -> Work:
    """Return the work of a loss on outputs of this shape: elementwise passes in fp32."""
    if setup.phase != "train":
        return NO_WORK
    passes, launches = _LOSSES[setup.loss]
    moved_bytes = float(setup.batch * math.prod(shape) * passes * 4)
    return Work(size_bytes=moved_bytes, launches=launches).times(max(setup.accumulate, 1))


def peak_memory(network: Network, setup: Setup) -> int:
    """Return the peak memory of a step in bytes.

    Training holds weights, gradients, optimizer state and the activations kept for the backward
    pass; inference weights and the activations of one layer. Of layers that are checkpointed
    together it holds the input, and the activations of one segment at a time.
    """
    works = [layer_work(layer, setup) for layer in network.layers]
    if not works:
        return 0
    # Activations, most of which are kept for backward.
    forward = [layer_work(replace(one, recomputed=False), setup).forward for one in network.layers]
    sizes = [work.memory_bytes for work in forward]
    segments = list_checkpoint_segments(network) if setup.phase == "train" else []
    inside = [sum(sizes[one.start : one.stop]) for one in segments]
    item_bytes = setup.batch * _activation_bytes(setup)
    inputs = sum(item_bytes * math.prod(input_shape(network.layers[one.start])) for one in segments)
    kept = sum(sizes) - sum(inside) + inputs + max(inside, default=0.0)
    largest = max(math.prod(output_shape(layer)) for layer in network.layers)
    held = sum(work.update.memory_bytes for work in works)
    passing = setup.batch * _weight_bytes(setup) * (2 * largest + math.prod(network.input.shape))
    return int(kept + held + passing)


# What a layer costs is asked for by pieces, by the host's calls and by memory.
@lru_cache(maxsize=16384)
def _count_layer_work(layer: Layer, setup: Setup, half_input: bool | None) -> StepWork:
    training = setup.phase == "train"
    item_bytes = _activation_bytes(setup)
    flags = training and layer.trains, training and layer.input_grad
    context = WorkContext(setup.batch, item_bytes, *flags)
    shape, tied = input_shape(layer), layer.tied
    work, shape, after, half = _step_work(layer, shape, context, setup, tied, half_input)
    if layer.tail:
        work = work + _tail_work(layer.tail, shape, after, setup, tied, half)
    if layer.transposed:
        copied = find_kind(layer.kind).copy_transposed(layer.sizes, input_shape(layer), context)
        work = replace(work, forward=work.forward + copied)
    if layer.recomputed and training:
        work = _recompute(work)
    if layer.calls > 1:
        # Weights are updated once.
        forward, backward = work.forward.times(layer.calls), work.backward.times(layer.calls)
        work = replace(work, forward=forward, backward=backward)
    return work if setup.accumulate == 1 else _accumulate(work, setup)


# Networks of many widths repeat the same few tails, and operators in them, on the same few shapes.
@lru_cache(maxsize=4096)
def _tail_work(
    ops: tuple[Op, ...],
    shape: Shape,
    context: WorkContext,
    setup: Setup,
    tied: bool,
    half: bool | None,
) -> StepWork:
    works = []
    for op in ops:
        work, shape, context, half = _tail_step_work(op, shape, context, setup, tied, half)
        works.append(work)
    return reduce(lambda after, work: work + after, reversed(works))


def _step_work(
    op: Op, shape: Shape, context: WorkContext, setup: Setup, tied: bool, half: bool | None
) -> tuple[StepWork, Shape, WorkContext, bool | None]:
    """Return the work of an operator, with the shape, context and precision of the next one."""
    if half is None:
        work = _op_work(op, shape, context, setup, tied)
    else:
        forward, backward = _cast_work(op, shape, context, half)
        half = works_in_half(op, half)
        context = replace(context, item_bytes=2 if half else WEIGHT_BYTES)
        work = _op_work(op, shape, context, setup, tied)
        work = replace(work, forward=work.forward + forward, backward=work.backward + backward)
    # After an operator whose weights train, or whose input gets a gradient, inputs get gradients.
    if not context.input_grad and context.trains and work.params:
        context = replace(context, input_grad=True)
    return work, find_kind(op.kind).out_shape(op.sizes, shape), context, half


_tail_step_work = lru_cache(maxsize=4096)(_step_work)


def works_in_half(op: Op, half: bool) -> bool:
    """Return whether autocast runs an operator in half precision."""
    precision = find_kind(op.kind).autocast(op.sizes)
    return half if precision == "input" else precision == "half"


def _cast_work(op: Op, shape: Shape, context: WorkContext, half: bool) -> tuple[Work, Work]:
    """Return the casts of an operator's input and weights under autocast, and of their gradients.

    Weights are cast once a step, each by a kernel of its own.
    """
    kind = find_kind(op.kind)
    if kind.is_view:
        return NO_WORK, NO_WORK
    is_half = works_in_half(op, half)
    inputs = weights = NO_WORK
    if is_half != half and not kind.reads_tokens:
        inputs = Work(0.0, float(context.batch * math.prod(shape) * _CAST_BYTES), 1)
    if is_half and kind.autocast(op.sizes) == "half":
        sizes = kind.params(op.sizes, shape)
        weights = Work(0.0, float(sum(sizes) * _CAST_BYTES), len(sizes))
    backward = inputs if context.input_grad else NO_WORK
    return inputs + weights, backward + weights if context.trains else backward


def _op_work(op: Op, shape: Shape, context: WorkContext, setup: Setup, tied: bool) -> StepWork:
    kind = find_kind(op.kind)
    weights = () if tied else kind.params(op.sizes, shape)
    params = sum(weights)
    update = Work(memory_bytes=float(params * _weight_bytes(setup)))
    if context.trains:
        moved, kept, launches = _UPDATES[setup.optimizer]
        update = Work(
            size_bytes=float(params * moved * WEIGHT_BYTES),
            launches=launches * len(weights),
            memory_bytes=float(params * (2 + kept) * WEIGHT_BYTES),
        )
    if setup.phase != "train" and kind.only_trains:
        return StepWork(NO_WORK, NO_WORK, update, params)
    forward = kind.forward(op.sizes, shape, context)
    if setup.phase != "train":
        return StepWork(replace(forward, memory_bytes=0.0), NO_WORK, update, params)
    return StepWork(forward, kind.backward(op.sizes, shape, context), update, params)


def _activation_bytes(setup: Setup) -> int:
    """Return the bytes of an activation; dynamic quantisation leaves activations in fp32."""
    if setup.precision == "int8":
        return 1
    return 2 if is_half_precision(setup) else 4


def _weight_bytes(setup: Setup) -> int:
    """Return the bytes of a weight: autocast keeps weights in full precision."""
    if setup.precision in INT8_PRECISIONS:
        return 1
    return 2 if is_half_precision(setup) and not uses_autocast(setup) else WEIGHT_BYTES


def _recompute(work: StepWork) -> StepWork:
    """Return the work of a layer whose activations backward computes once more."""
    again = replace(work.forward, memory_bytes=0.0)
    has_backward = work.backward.launches > 0
    return replace(work, forward=again, backward=work.backward + again) if has_backward else work


def _accumulate(work: StepWork, setup: Setup) -> StepWork:
    """Return the work of several batches whose gradients are added up before one update."""
    batches = max(setup.accumulate, 1)
    forward = replace(work.forward.times(batches), memory_bytes=work.forward.memory_bytes)
    backward = work.backward.times(batches)
    if weights := work.update.launches // UPDATE_LAUNCHES[setup.optimizer]:
        moved_bytes = float(work.params * _ADD_GRADIENT_MOVES * WEIGHT_BYTES)
        backward = backward + Work(0.0, moved_bytes, weights).times(max(batches - 1, 1))
    update = work.update if setup.accumulate else Work(memory_bytes=work.update.memory_bytes)
    return StepWork(forward, backward, update, work.params)


# ---------------------------------------------------------------------------------------------
# Autocast
#
# Contractions return half precision; layer norms and embeddings return full precision; a sum is
# half only if all its inputs are; all other operators keep the precision of their input. A layer
# that is measured alone must get the precision it gets in its network, or it pays for casts that
# the network does not make.


def is_half_precision(setup: Setup) -> bool:
    """Return whether a setup computes in half precision, under autocast or throughout."""
    return setup.precision in ("bf16", "fp16")


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
        ops: tuple[Op, ...] = (layer, *layer.tail)
        for op in ops:
            half = works_in_half(op, half)
        half_outputs.append(half)
    return tuple(half_inputs)


# ---------------------------------------------------------------------------------------------
# Activation checkpointing
#
# PyTorch checkpoints a module as a whole: its input is kept, and backward first runs it forward
# again. It stops as soon as backward has all that it needs. A matrix product at the end needs only
# its input, so it is not run again. ``Layer.recomputed`` marks the layers that are.


@dataclass(frozen=True)
class CheckpointSegment:
    """Layers that are checkpointed together: a half-open range.

    Attributes:
        repeats_last: The last layer is run again too; otherwise it is a matrix product whose input
            is computed again.
    """

    start: int
    stop: int
    repeats_last: bool = True


def list_checkpoint_segments(network: Network) -> list[CheckpointSegment]:
    """Return the segments of a network in order; each block is checkpointed by itself."""
    ranges, end = [], 0  # of blocks, and of layers between them
    for start, stop in sorted(network.groups):
        ranges += [(end, start), (start, stop)]
        end = stop
    segments = []
    for start, stop in (*ranges, (end, len(network.layers))):
        index = start
        while index < stop:
            first = index
            while index < stop and network.layers[index].recomputed:
                index += 1
            if index > first:
                has_product = index < stop and needs_only_its_input(network.layers[index])
                segments.append(CheckpointSegment(first, index + has_product, not has_product))
            index += 1
    return segments


def needs_only_its_input(layer: Layer) -> bool:
    """Return whether backward of a layer can do without its result: a product without a tail."""
    is_product = find_kind(layer.kind).operator_class in ("convolution", "matmul")
    return is_product and not layer.tail and not layer.parts


def checkpoint_blocks(network: Network) -> Network:
    """Return a network whose repeated blocks are each under activation checkpointing.

    Layers at the end of a block that backward can do without are not run again, as in PyTorch.

    Raises:
        InputError: The network repeats no block.
    """
    if any(layer.recomputed for layer in network.layers):
        return network
    if not network.groups:
        name = network.name or "the network"
        raise InputError(f"{name} repeats no block to checkpoint: leave {arg('checkpoint')} out")
    inside = {
        index
        for start, stop in network.groups
        for index in range(start, start + _count_repeated(network.layers[start:stop]))
    }
    layers = tuple(
        replace(layer, recomputed=index in inside) for index, layer in enumerate(network.layers)
    )
    return _scale_totals(network, replace(network, layers=layers))


def _count_repeated(layers: tuple[Layer, ...]) -> int:
    """Return how many layers of a block are run again."""
    count = len(layers)
    while count and not layer_work(layers[count - 1], _ANY).forward.memory_bytes:
        count -= 1
    return count - 1 if count and needs_only_its_input(layers[count - 1]) else count


def _scale_totals(plain: Network, network: Network) -> Network:
    """Return the network with totals that include what is run again."""
    if plain.totals is None:
        return network
    before, after = (network_work(one, _ANY).total for one in (plain, network))
    flops = plain.totals.flops * (after.flops / max(before.flops, 1.0))
    size_bytes = plain.totals.size_bytes * (after.size_bytes / max(before.size_bytes, 1.0))
    return replace(network, totals=replace(plain.totals, flops=flops, size_bytes=size_bytes))


# ---------------------------------------------------------------------------------------------
# Calls of the host
#
# Not every launch takes the host the same time. Matrix products and convolutions need more setup,
# and in half precision their inputs are cast first; autograd and the optimizer visit every weight,
# and the optimizer updates all of them together; recurrent layers issue all their tokens at once.
# All other launches are those of plain operators. A forward pass alone records nothing for
# autograd, so its calls are counted apart.

HOST_CALLS = (
    "launches",
    "weights",
    "products",
    "casts",
    "inference launches",
    "inference products",
)


def count_host_calls(layer: Layer, setup: Setup) -> tuple[float, ...]:
    """Return one count for each of ``HOST_CALLS``."""
    if layer.parts:
        return add_host_calls(*(count_host_calls(part, setup) for part in layer.parts))
    row = find_kind(layer.kind)
    work = layer_work(layer, setup)
    without_tail = layer_work(replace(layer, tail=()), setup) if layer.tail else work
    forward, backward = without_tail.forward.launches, without_tail.backward.launches
    launches = work.forward.launches + work.backward.launches
    if row.is_recurrent:
        passes = bool(forward) + bool(backward)
        launches += passes * layer.calls - forward - backward
    weights = work.update.launches // UPDATE_LAUNCHES[setup.optimizer]
    products = layer.calls * row.product_calls if without_tail.forward.flops else 0
    products *= max(setup.accumulate, 1) * (2 if layer.recomputed else 1)
    if setup.phase == "inference":
        return 0.0, 0.0, 0.0, 0.0, float(launches), float(products)
    casts = products if uses_autocast(setup) else 0
    return float(launches), float(weights), float(products), float(casts), 0.0, 0.0


def add_host_calls(*counts: tuple[float, ...]) -> tuple[float, ...]:
    """Return the counts of several layers together."""
    return tuple(map(sum, zip(*counts, strict=True)))
