"""Split an operator of a training step into its passes: the kernels that run one after another.

    y = x·W                 forward
    dx = dy·Wᵀ              backward, two products of other shapes
    dW = xᵀ·dy
    W -= …                  update: an elementwise kernel

Each is described as the operator of an inference, so that what is known of kernels that only ran
forward tells about training too. Of other operators, backward is one kernel with the bytes and
FLOPs that are left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from joulecast.estimators.additive.piece_points import AXES
from joulecast.estimators.additive.pieces import Piece, make_piece
from joulecast.kinds import StepWork, find_kind, layer_work, make_layer
from joulecast.records import Layer, Setup
from joulecast.variants import Part

Passes = tuple[tuple[Piece, float], ...]

_UPDATE = "update"
# Bytes beyond those of forward and backward that are worth a pass.
_MIN_UPDATE_SHARE = 0.01


@lru_cache(maxsize=65536)
def split_passes(leaf: Piece) -> Passes:
    """Return the passes of a leaf with how often it runs each; itself if it is one pass."""
    if leaf.operator is None or leaf.phase != "train":
        return ((leaf, 1.0),)
    operator, setup, half_input = leaf.operator
    forward_setup = _make_forward_setup(leaf, setup)
    forward = make_piece(Part("hidden", (operator,), half_input), forward_setup)
    work = layer_work(operator, setup, half_input)
    products = list(_list_backward_products(operator, setup))
    if products:
        once = replace(forward_setup, batch=1)
        backward = [make_piece(Part("hidden", (one,), half_input), once) for one in products]
    else:
        backward = _make_backward(leaf, forward, work)
    kernels = [forward, *backward]
    counts: dict[Piece, float] = {}
    for one in (*kernels, *_make_update(leaf, kernels)):
        if one.flops or one.size_bytes:
            counts[one] = counts.get(one, 0.0) + 1.0
    return tuple(counts.items())


def _make_forward_setup(leaf: Piece, setup: Setup) -> Setup:
    """Return the setup of a forward pass; TF32 changes nothing but products."""
    is_exact = setup.precision == "tf32" and not leaf.flops
    precision = "fp32" if is_exact else setup.precision
    return replace(setup, phase="inference", accumulate=1, precision=precision)


def _list_backward_products(operator: Layer, setup: Setup) -> Iterator[Layer]:
    """Yield the matrix products of the backward pass, each for the whole batch."""
    kind = find_kind(operator.kind)
    needed = {"input": operator.input_grad, "weight": operator.trains}
    for whose, sizes in kind.gradient_products(operator.sizes, setup.batch):
        if needed[whose]:
            product = make_layer(operator.kind, **sizes)
            yield product if kind.second_shape is None else replace(product, reads=(1, 2))


def _make_backward(leaf: Piece, forward: Piece, work: StepWork) -> list[Piece]:
    """Return the backward pass of an operator that is no matrix product."""
    launches = leaf.launches - forward.launches
    moved_bytes = work.backward.size_bytes
    if launches <= 0 or not moved_bytes:
        return []
    flops = max(leaf.flops - forward.flops, 0.0)
    padded = max(leaf.padded_flops - forward.padded_flops, 0.0)
    point = list(forward.point)
    for axis, own, other in (
        ("flops", flops, forward.flops),
        ("bytes", moved_bytes, forward.size_bytes),
    ):
        at = AXES.index(axis)
        # Over the same elements as those of the forward pass.
        point[at] = math.log1p(math.expm1(point[at]) * own / other) if other else point[at]
    return [
        replace(
            forward,
            key=f"{forward.key} backward {moved_bytes:.0f} {flops:.0f}",
            kind=f"{forward.kind} backward",
            flops=flops,
            padded_flops=padded,
            size_bytes=moved_bytes,
            alone_bytes=moved_bytes,
            launches=launches,
            point=tuple(point),
            operator=None,
        )
    ]


def _make_update(leaf: Piece, kernels: Sequence[Piece]) -> list[Piece]:
    """Return what is left of a leaf's bytes, all of it elementwise.

    Weights change, gradients are added up, and autocast converts operands.
    """
    left_bytes = leaf.size_bytes - sum(one.size_bytes for one in kernels)
    if left_bytes < _MIN_UPDATE_SHARE * leaf.size_bytes:
        return []
    rows = max(left_bytes / 12.0, 1.0)
    point = [0.0] * len(AXES)
    point[AXES.index("positions")] = math.log(rows)
    point[AXES.index("bytes")] = math.log1p(6.0)
    point[AXES.index("alignment")] = leaf.point[AXES.index("alignment")]
    return [
        replace(
            leaf,
            key=f"{_UPDATE} {left_bytes:.0f}",
            kind=_UPDATE,
            regime="fp32 inference",
            phase="inference",
            precision="fp32",
            operator_class=find_kind("elementwise").operator_class,
            flops=0.0,
            padded_flops=0.0,
            size_bytes=left_bytes,
            alone_bytes=left_bytes,
            launches=0,
            point=tuple(point),
            operator=None,
        )
    ]
