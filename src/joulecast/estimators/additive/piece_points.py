"""Find the point of a leaf: what the residual of its duration depends on, all logarithms.

All kinds have the same numbers, as if each multiplied rows by a matrix: positions (rows), input
channels (depth) and output channels (columns), FLOPs and bytes over them, the alignment of its
products, and by how much padding increases its FLOPs. Strides and missing gradients show in FLOPs
and bytes. Two more tell apart what libraries run different kernels for: the window of a convolution
or the steps of a recurrent layer, and the extent of an image.
"""

from __future__ import annotations

import math
from typing import Any

from joulecast.kinds import Kind, Work, channel_axis, find_kind, input_shape, output_shape
from joulecast.records import Layer, Setup
from joulecast.variants import Part

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
        *_find_window(part.layers[0]),
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


def _find_window(layer: Layer) -> tuple[float, float]:
    """Return the window of a convolution and its image, or the steps of a recurrent layer."""
    kind, sizes = find_kind(layer.kind), layer.sizes
    if kind.is_recurrent:
        cells = sizes["depth"] * (1 + sizes["bidirectional"])
        return math.log(sizes["tokens"] * cells), 0.0
    if kind.is_convolution:
        return math.log(math.prod(sizes["kernel"])), math.log(math.prod(sizes["space"]))
    return 0.0, 0.0


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
