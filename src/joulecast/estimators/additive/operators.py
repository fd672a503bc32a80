"""Split a layer into its operators, each as a layer of its own, and describe them.

A batch norm costs the same behind a convolution as behind a linear layer: operators of a tail share
what was measured of them behind any other. On 2,859 durations of an H200 this reduced the median
leave-one-out error from 10.9 % to 9.1 %.

Of compiled layers, products, convolutions, attention, recurrent layers and embeddings remain
kernels of libraries, and images become channels last for them: they are the operators of eager
steps. TorchInductor fuses all others. A chain reads its inputs and writes its results once, and
casts happen on the way:

    norm                    eight tensors: statistics and result, forward and backward
    after a library kernel  five tensors, however many operators its formula has
    any other operator      its further inputs and their gradients, and a mask or a copy

Fused operators have kinds of their own, so that their residuals are learnt from compiled steps
only.

The **point** of an operator is what the residual of its duration depends on, all logarithms. All
kinds have the same numbers, as if each multiplied rows by a matrix: positions (rows), input
channels (depth) and output channels (columns), FLOPs and bytes over them, the alignment of its
products, and by how much padding increases its FLOPs. Strides and missing gradients show in FLOPs
and bytes. Two more tell apart what libraries run different kernels for: the window of a convolution
or the steps of a recurrent layer, and the extent of an image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from joulecast.operators import (
    Kind,
    Work,
    channel_axis,
    find_kind,
    input_shape,
    is_half_precision,
    layer_work,
    output_shape,
)
from joulecast.records import Layer, Setup, Sizes
from joulecast.variants import Part

# Tensors that a sum or product of two inputs moves in a step, with different inputs and with the
# same tensor twice, as when it runs alone: that is read once, and its two gradients are added.
# Large ones alone take as long on an H200 as moving 4.1 and 10.9 at 4.3 TB/s.
_JOIN_MOVES = {"add": (6, 4), "mul": (9, 11)}
# The same in a forward pass.
_FORWARD_MOVES = (3, 2)


def has_several_operators(layer: Layer) -> bool:
    """Return whether it is more than one operator, by its kind or its tail."""
    has_tail = any(not find_kind(op.kind).is_view for op in layer.tail)
    return has_tail or bool(find_kind(layer.kind).operators(layer.sizes))


def list_operators(layer: Layer, half: bool) -> Iterator[tuple[Layer, bool]]:
    """Yield the operators of a layer, with whether their input is in half precision."""
    operator = replace(layer, tail=())
    yield from _split_kind(operator, half)
    shape = output_shape(operator)
    has_weights = bool(find_kind(layer.kind).params(layer.sizes, input_shape(layer)))
    input_grad = layer.input_grad or (layer.trains and has_weights)
    is_channels_last = layer.channels_last or layer.channels_last_weights
    half = gives_half(operator, half)
    for op in layer.tail:
        kind = find_kind(op.kind)
        operator = Layer(
            op.kind,
            Sizes({**op.sizes, "shape": shape}),
            (),
            layer.trains,
            input_grad,
            tied=layer.tied,
            channels_last=is_channels_last and len(shape) > 2,
            recomputed=layer.recomputed,
        )
        yield operator, half
        half = gives_half(operator, half)
        input_grad = input_grad or (layer.trains and bool(kind.params(op.sizes, shape)))
        shape = kind.out_shape(op.sizes, shape)


def _split_kind(layer: Layer, half: bool) -> Iterator[tuple[Layer, bool]]:
    """Yield the operators that a layer's kind runs one after the other; itself if it is one."""
    operators = find_kind(layer.kind).operators(layer.sizes)
    if not operators:
        yield layer, half
    for number, (kind, sizes) in enumerate(operators):
        input_grad = layer.input_grad or (number > 0 and layer.trains)
        operator = Layer(
            kind,
            Sizes(sizes),
            (),
            layer.trains,
            input_grad,
            tied=layer.tied,
            recomputed=layer.recomputed,
        )
        yield operator, half
        half = gives_half(operator, half)


def gives_half(operator: Layer, half: bool) -> bool:
    """Return whether an operator's output is in half precision under autocast."""
    precision = find_kind(operator.kind).autocast(operator.sizes)
    return half if precision == "input" else precision == "half"


def count_fork_work(layer: Layer, forward: Work) -> Work:
    """Return the work of adding gradients where the branches fork that a sum joins.

    Nothing that the network calls does it, so no rule of a kind counts it.
    """
    count = len(layer.reads)
    if layer.join != "add" or not _is_join(layer) or layer.tail:
        return Work()
    return Work(0.0, forward.size_bytes * 3 * (count - 1) / (count + 1), count - 1)


def share_moved_alone(layer: Layer, has_gradient: bool) -> float:
    """Return the share of its bytes that a join moves when it runs alone, on one tensor twice."""
    if not _is_join(layer) or len(layer.reads) != 2 or layer.join not in _JOIN_MOVES:
        return 1.0
    apart, alone = _JOIN_MOVES[layer.join] if has_gradient else _FORWARD_MOVES
    return alone / apart


def _is_join(layer: Layer) -> bool:
    """Return whether the operator itself joins all inputs."""
    return bool(layer.sizes.get("inputs", 1) == len(layer.reads) > 1)


FUSED = "fused"
"""Operator class of operators that TorchInductor fuses."""
PADDED_WIDTH = 8
"""Multiple to which the widths of products are padded, so that rows are aligned."""
NORM_PASSES = 8
"""Tensors that a norm moves in a training step: statistics and result, both also backward."""

# Duration in a compiled step over that alone, by class: linear layers and convolutions alone
# contain casts and copies, which fuse too. Chosen on eight networks on an H200
# (benchmarks/real_runs).
_COMPILED_SHARES = {"convolution": 0.6, "grouped convolution": 0.6}
_COMPILED_SHARE = 0.79
# Slices and concatenations become part of what reads them.
_COPY_SHARE = 0.25


def is_library_operator(operator: Layer) -> bool:
    """Return whether a compiled step still calls a library for an operator."""
    return find_kind(operator.kind).operator_class != "elementwise"


def find_compiled_share(operator_class: str) -> float:
    """Return how long an operator takes in a compiled step, as a share of its duration alone."""
    return _COMPILED_SHARES.get(operator_class, _COMPILED_SHARE)


def count_moved_bytes(operator: Layer, previous: Layer | None, setup: Setup) -> float:
    """Return the bytes that a fused operator moves, never more than it moves in an eager step."""
    counted_bytes = layer_work(operator, setup).total.size_bytes
    is_train = setup.phase == "train"
    element_bytes = 2 if is_half_precision(setup) else 4
    tensor_bytes = float(setup.batch * math.prod(input_shape(operator)) * element_bytes)
    kind, shape = find_kind(operator.kind), input_shape(operator)
    if output_shape(operator) != shape:
        # Pooling computes fewer elements from more.
        is_smaller = math.prod(output_shape(operator)) < math.prod(shape)
        is_reduced = is_smaller and not kind.selects_elements
        return counted_bytes if is_reduced else counted_bytes * _COPY_SHARE
    if not kind.is_function and kind.params(operator.sizes, shape):
        passes = NORM_PASSES if is_train else 3
    elif starts_chain(previous):
        passes = 5 if is_train else 2
    else:
        inputs = len(operator.reads)
        passes = 2 * inputs - 1 if is_train else inputs - 1
    return min(counted_bytes, passes * tensor_bytes)


def starts_chain(previous: Layer | None) -> bool:
    """Return whether an operator reads what a library wrote to memory."""
    return previous is not None and is_library_operator(previous)


def run_as_library(operator: Layer) -> Layer:
    """Return an operator as TorchInductor runs it: images channels last, products padded."""
    kind, sizes = find_kind(operator.kind), operator.sizes
    if kind.is_convolution and len(input_shape(operator)) == 3:
        return replace(operator, channels_last=True, channels_last_weights=True)
    if kind.operator_class != "matmul" or kind.is_function:
        return operator
    padded = {
        name: -(-sizes[name] // PADDED_WIDTH) * PADDED_WIDTH
        for name in kind.aligned_widths
        if sizes[name] > PADDED_WIDTH
    }
    return replace(operator, sizes=Sizes({**sizes, **padded}))


AXES = (
    "positions",
    "input channels",
    "output channels",
    "flops",
    "bytes",
    "alignment",
    "padding",
    "window",
    "extent",
)
LOSS_FUNCTION = "cross_entropy"
"""A loss that the module itself computes: the same operator as one that follows a network."""
# Channels that matrix units process at once, about: products of fewer cost as much.
TILE = 16
# Share of the products that causal attention computes; the rest is masked.
_CAUSAL_SHARE = 0.5
# Matrix products run best with rows in multiples of this many numbers; distance of those that do
# not, per factor of two.
_ALIGNED_ROW = 8
_ALIGNMENT_SCALE = 0.4
_LEAST_CHANNELS = 1e-3


def find_point(part: Part, setup: Setup, work: Work, executed_flops: float) -> tuple[float, ...]:
    """Return the coordinates of a part under a setup, one for each of AXES."""
    positions, in_channels, out_channels = _find_extents(part, setup)
    if part.layers[0].sizes.get("fn") == LOSS_FUNCTION:
        return find_loss_point(positions, in_channels, work.size_bytes)
    first = part.layers[0]
    kind, sizes = find_kind(first.kind), first.sizes
    window = 0.0, 0.0
    if kind.is_recurrent:
        cells = sizes["depth"] * (1 + sizes["bidirectional"])
        window = math.log(sizes["tokens"] * cells), 0.0
    elif kind.is_convolution:
        window = math.log(math.prod(sizes["kernel"])), math.log(math.prod(sizes["space"]))
    elements = positions * (in_channels + out_channels)
    products = positions * in_channels * out_channels
    return (
        math.log(positions),
        math.log(in_channels),
        math.log(out_channels),
        math.log(1.0 + work.flops / products),
        math.log(1.0 + work.size_bytes / elements),
        _measure_alignment(part),
        math.log((executed_flops + 1.0) / (work.flops + 1.0)),
        *window,
    )


def find_loss_point(positions: float, channels: float, size_bytes: float) -> tuple[float, ...]:
    """Return the coordinates of a loss."""
    size = math.log(1.0 + size_bytes / (2.0 * positions * channels))
    aligned = _ALIGNMENT_SCALE * math.log2(_ALIGNED_ROW)
    sizes = math.log(positions), math.log(channels), math.log(channels)
    return (*sizes, 0.0, size, aligned, 0.0, 0.0, 0.0)


def count_executed_flops(layer: Layer, work: Work) -> float:
    """Return the FLOPs that run: narrow layers leave tiles empty, causal attention skips half."""
    sizes, flops = layer.sizes, work.flops
    if sizes.get("groups", 1) > 1:
        return flops
    if sizes.get("causal"):
        flops *= _CAUSAL_SHARE
    for name in find_kind(layer.kind).aligned_widths:
        width = int(sizes[name])
        flops *= TILE * math.ceil(width / TILE) / width
    return flops


def _find_extents(part: Part, setup: Setup) -> tuple[float, float, float]:
    """Return positions, and input and output channels of each: rows, depth and columns."""
    first = part.layers[0]
    kind: Kind = find_kind(first.kind)
    sizes: Any = first.sizes
    if kind.has_head_dim:
        # Each head of each sequence multiplies queries by keys of its own.
        rows = setup.batch * sizes.get("windows", 1) * sizes["heads"] * sizes["tokens"]
        return float(rows), float(sizes["head_dim"]), float(sizes["kv_tokens"])
    in_shape, out_shape = input_shape(first), output_shape(part.layers[-1])
    in_channels = max(1, in_shape[channel_axis(first)] if in_shape else 1)
    if kind.is_recurrent:
        # Tokens follow each other: one step multiplies the states of a batch.
        return float(setup.batch), float(in_channels), float(sizes["hidden"])
    positions = setup.batch * math.prod(in_shape) / in_channels
    out_channels = setup.batch * math.prod(out_shape) / positions
    return positions, float(in_channels), max(out_channels, _LEAST_CHANNELS)


def _measure_alignment(part: Part) -> float:
    """Return how aligned the widths of matrix products are: 0 if one is odd, most at eights.

    Products whose rows do not fill 16 bytes take other kernels; some kinds pad rows themselves.
    """
    widths = [
        int(layer.sizes[name])
        for layer, kind in ((layer, find_kind(layer.kind)) for layer in part.layers)
        if not kind.pads_widths
        for name in kind.aligned_widths
    ]
    least = min((math.gcd(width, _ALIGNED_ROW) for width in widths), default=_ALIGNED_ROW)
    return _ALIGNMENT_SCALE * math.log2(least)
