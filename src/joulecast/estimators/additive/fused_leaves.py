"""Find the leaves of compiled layers: what libraries run, and what TorchInductor fuses.

Products, convolutions, attention, recurrent layers and embeddings remain kernels of libraries, and
images become channels last for them: they are the leaves of eager steps. All other operators are
fused. A chain reads its inputs and writes its results once, and casts happen on the way:

    norm                    as in an eager step, without casts
    after a library kernel  as in an eager step, without casts
    any other operator      reads one more tensor in each direction: a third of what it moves alone

Leaves of fused operators have kinds of their own, so that their residuals are learnt from compiled
steps only.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.kinds import find_kind, input_shape, output_shape
from joulecast.records import Layer

FUSED = "fused"
"""Operator class of leaves that TorchInductor fuses."""
FUSED_SHARE = 1.0 / 3.0
"""Share of its bytes that an operator moves inside a fused chain."""


def is_library_operator(operator: Layer) -> bool:
    """Return whether a compiled step still calls a library for an operator."""
    return find_kind(operator.kind).operator_class != "elementwise"


def find_moved_share(operator: Layer, previous: Layer | None) -> float:
    """Return the share of its bytes that a fused operator moves.

    Args:
        operator: The operator.
        previous: The operator before it in the layer; None for the first one.
    """
    if previous is not None and is_library_operator(previous):
        return 1.0
    return FUSED_SHARE if _is_pointwise(operator) else 1.0


def use_channels_last(operator: Layer) -> Layer:
    """Return a convolution of images as TorchInductor runs it."""
    kind = find_kind(operator.kind)
    if not kind.is_convolution or len(input_shape(operator)) != 3:
        return operator
    return replace(operator, channels_last=True, channels_last_weights=True)


def _is_pointwise(operator: Layer) -> bool:
    """Return whether every element of its result depends on one of each input."""
    kind, shape = find_kind(operator.kind), input_shape(operator)
    has_weights = bool(kind.params(operator.sizes, shape)) and not kind.is_function
    return not has_weights and output_shape(operator) == shape
