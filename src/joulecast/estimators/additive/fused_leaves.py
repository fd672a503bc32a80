"""Find the leaves of compiled layers: what libraries run, and what TorchInductor fuses.

Products, convolutions, attention, recurrent layers and embeddings remain kernels of libraries, and
images become channels last for them: they are the leaves of eager steps. All other operators are
fused. A chain reads its inputs and writes its results once, and casts happen on the way:

    norm                    eight tensors: statistics and result, forward and backward
    after a library kernel  five tensors, however many operators its formula has
    any other operator      its further inputs and their gradients, and a mask or a copy

Leaves of fused operators have kinds of their own, so that their residuals are learnt from compiled
steps only.
"""

from __future__ import annotations

import math
from dataclasses import replace

from joulecast.kinds import find_kind, input_shape, is_half_precision, layer_work, output_shape
from joulecast.records import Layer, Setup, Sizes

FUSED = "fused"
"""Operator class of leaves that TorchInductor fuses."""
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
    """Return how long a leaf takes in a compiled step, as a share of its duration alone."""
    return _COMPILED_SHARES.get(operator_class, _COMPILED_SHARE)


def count_moved_bytes(operator: Layer, previous: Layer | None, setup: Setup) -> float:
    """Return the bytes that a fused operator moves, never more than it moves in an eager step.

    Args:
        operator: The operator.
        previous: The operator before it in the layer; None for the first one.
        setup: How it is run.
    """
    counted_bytes = layer_work(operator, setup).total.size_bytes
    is_train = setup.phase == "train"
    element_bytes = 2 if is_half_precision(setup) else 4
    tensor_bytes = float(setup.batch * math.prod(input_shape(operator)) * element_bytes)
    if output_shape(operator) != input_shape(operator):
        return counted_bytes if _reduces(operator) else counted_bytes * _COPY_SHARE
    if not _is_pointwise(operator):
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


def _is_pointwise(operator: Layer) -> bool:
    """Return whether every element of its result depends on one of each input."""
    kind, shape = find_kind(operator.kind), input_shape(operator)
    return kind.is_function or not kind.params(operator.sizes, shape)


def _reduces(operator: Layer) -> bool:
    """Return whether it computes fewer elements from more, as pooling does."""
    return math.prod(output_shape(operator)) < math.prod(input_shape(operator)) and not (
        find_kind(operator.kind).selects_elements
    )
