"""Pieces: what `additive` sums over, a layer or a repeated block of a network under a setup.

    Network ──split──▶ Part (a layer, or a repeated block) + Setup ──▶ Piece

A piece's **label** is its kind under one regime (precision, phase, threads); residuals are shared
within it. Its **point** x is the same six numbers for every kind, all logarithms, so that no kind
needs rules of its own: positions, input and output channels per position, FLOPs and bytes over
them, and the alignment of its matrix products. Tails, kernels, strides, groups and missing
gradients all show in FLOPs and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from joulecast.kinds import (
    HOST_CALLS,
    Work,
    add_host_calls,
    channel_axis,
    count_host_calls,
    find_kind,
    input_shape,
    is_half_precision,
    layer_work,
    loss_work,
    output_shape,
)
from joulecast.records import Layer, Network, Op, Setup, name_layout, stable_hash
from joulecast.records.codec import add_codec
from joulecast.records.operand_order import order_branches
from joulecast.variants import (
    BLOCK,
    Part,
    PlacedPart,
    match_precision,
    split_blocks,
    split_network,
)

AXES = ("positions", "input channels", "output channels", "flops", "bytes", "alignment")
OVERHEAD_PREFIX = "overhead of "
# Channels that matrix units process at once, about: products of fewer cost as much.
TILE = 16
# FLOPs that take as long as moving a byte, about: weighs an update against a layer's cost.
_FLOPS_PER_BYTE = 100.0
# Matrix products run best with rows in multiples of this many numbers; distance of those that do
# not, per factor of two.
_ALIGNED_ROW = 8
_ALIGNMENT_SCALE = 0.4


@dataclass(frozen=True)
class Piece:
    """A part under a setup, with all that the estimator needs of it.

    Attributes:
        key: Identity: equal pieces have equal keys, on every machine.
        label: Its kind and regime.
        flop_class: Precision and phase: FLOPs of one class cost alike.
        structure: Hash of its operators without sizes, which decide how long the host issues it.
        padded_flops: FLOPs with all channels rounded up to whole tiles.
        point: Its coordinates, one for each of AXES.
        host_calls: Number of host calls, one for each type in HOST_CALLS.
        is_recurrent: It is a recurrent layer, which fuses most of the launches counted for it.
    """

    key: str
    label: str = field(compare=False)
    flop_class: str = field(compare=False)
    structure: str = field(compare=False)
    flops: float = field(compare=False)
    padded_flops: float = field(compare=False)
    size_bytes: float = field(compare=False)
    launches: int = field(compare=False)
    point: tuple[float, ...] = field(compare=False)
    host_calls: tuple[float, ...] = field(compare=False)
    is_recurrent: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class PlacedPiece:
    """A piece at its place in a network.

    Attributes:
        count: How often a step runs it: its calls, less the updates it does not repeat. Weights are
            updated once, however often their layer is called and whatever layers share them.
    """

    piece: Piece
    placed_part: PlacedPart
    count: float

    @property
    def is_block(self) -> bool:
        """Whether it is a whole repeated block."""
        return self.placed_part.part.role == BLOCK


@lru_cache(maxsize=65536)
def make_piece(part: Part, setup: Setup) -> Piece:
    """Return the piece of a part under a setup."""
    part = match_precision(part, setup)
    if part.role == BLOCK:
        part = replace(part, layers=order_branches(part.layers))
    works = [layer_work(layer, setup).total for layer in part.layers]
    work = _add_work(part, setup, works)
    operators = _list_operators(part)
    layers = [layer.to_dict() for layer in part.layers]
    flop_class, regime = _name_regime(setup)
    is_leaf = part.role != BLOCK
    return Piece(
        key=stable_hash(
            [layers, part.role == "output", part.half_input, _select_setup(part, setup)]
        ),
        label=f"{_name_kind(part, operators)} {regime}",
        flop_class=flop_class,
        structure=_hash_structure(part, operators, setup),
        flops=work.flops,
        padded_flops=sum(map(_pad_flops, part.layers, works)),
        size_bytes=work.size_bytes,
        launches=work.launches,
        point=_find_point(part, setup, work),
        host_calls=_sum_calls(part, setup),
        is_recurrent=is_leaf and find_kind(part.layers[0].kind).is_recurrent,
    )


def make_overhead_piece(source: str) -> Piece:
    """Return what every imported run of a source pays once: start-up and evaluation."""
    label = OVERHEAD_PREFIX + source
    calls, origin = (0.0,) * len(HOST_CALLS), (0.0,) * len(AXES)
    return Piece(label, label, "", label, 0.0, 0.0, 0.0, 0, origin, calls)


def split_pieces(
    network: Network, setup: Setup, measured_labels: Collection[str]
) -> tuple[PlacedPiece, ...]:
    """Return the pieces of a network's step, with whole blocks where their label was measured.

    Args:
        network: The network.
        setup: How it is trained.
        measured_labels: Labels that were measured. A block of another label is opened, as long as
            that reveals a measured one.
    """
    pieces = list(_place_pieces(split_blocks(network), setup))
    if all(one.piece.label in measured_labels or not one.is_block for one in pieces):
        return tuple(pieces)
    leaves = {leaf.index: leaf for leaf in split_network(network)}
    found: list[PlacedPiece] = []
    for one in pieces:
        start = one.placed_part.index
        span = range(start, start + len(one.placed_part.layers))
        opened = list(_place_pieces([leaves[at] for at in span if at in leaves], setup))
        is_unseen = one.is_block and one.piece.label not in measured_labels
        helps = any(leaf.piece.label in measured_labels for leaf in opened)
        found += opened if is_unseen and helps else [one]
    return tuple(found)


def count_pieces(pieces: Iterable[PlacedPiece], times: float = 1.0) -> dict[Piece, float]:
    """Return the distinct pieces with how often a step runs each."""
    counts: dict[Piece, float] = {}
    for one in pieces:
        counts[one.piece] = counts.get(one.piece, 0.0) + one.count * times
    return counts


def _place_pieces(parts: Iterable[PlacedPart], setup: Setup) -> Iterator[PlacedPiece]:
    """Yield the parts as pieces, except those that do no work at all."""
    for one in parts:
        piece = make_piece(one.part, setup)
        if piece.flops or piece.size_bytes:
            yield PlacedPiece(piece, one, _count_repeats(one, setup))


def _count_repeats(placed: PlacedPart, setup: Setup) -> float:
    repeats = placed.calls - 1 + any(layer.tied for layer in placed.layers)
    if not repeats:
        return float(placed.calls)
    work = layer_work(placed.part.layers[0], setup)
    cost = work.total.size_bytes + work.total.flops / _FLOPS_PER_BYTE
    return placed.calls - repeats * work.update.size_bytes / max(cost, 1.0)


def _select_setup(part: Part, setup: Setup) -> dict[str, object]:
    """Return the settings that change a piece; the loss only at the end of a network."""
    settings: dict[str, object] = setup.to_dict()
    loss = settings.pop("loss")
    if part.role == "output":
        settings["loss"] = "cross_entropy" if loss == "own" else loss
    return settings


def _add_work(part: Part, setup: Setup, works: Sequence[Work]) -> Work:
    total = works[0]
    for work in works[1:]:
        total = total + work
    if part.role == "output":
        total = total + loss_work(output_shape(part.layers[-1]), setup)
    return total


def _sum_calls(part: Part, setup: Setup) -> tuple[float, ...]:
    calls = add_host_calls(*(count_host_calls(layer, setup) for layer in part.layers))
    if part.role != "output":
        return calls
    return calls[0] + loss_work(output_shape(part.layers[-1]), setup).launches, *calls[1:]


def _pad_flops(layer: Layer, work: Work) -> float:
    """Return FLOPs with channels rounded up to tiles: narrow layers leave most of a tile empty."""
    flops = work.flops
    if layer.sizes.get("groups", 1) > 1:
        return flops
    for name in find_kind(layer.kind).aligned_widths:
        width = int(layer.sizes[name])
        flops *= TILE * math.ceil(width / TILE) / width
    return flops


@lru_cache(maxsize=256)
def _name_regime(setup: Setup) -> tuple[str, str]:
    """Return what decides the cost of a FLOP, and all that decides which residuals are shared."""
    flop_class = setup.precision if setup.phase == "train" else f"{setup.precision} {setup.phase}"
    regime = flop_class + (f" {setup.threads} threads" if setup.threads else "")
    return flop_class, regime + (" benchmark" if setup.cudnn_benchmark else "")


def _name_kind(part: Part, operators: tuple[tuple[object, ...], ...]) -> str:
    """Return the kinds of a leaf or the structure of a block; an output also has its loss."""
    if part.role == BLOCK:
        return f"block:{_hash(operators)[:8]}"
    names = [
        " ".join([str(layer.sizes.get("fn", layer.kind)), *_name_memory_format(layer)])
        for layer in part.layers
    ]
    return "+".join([*names, "loss"] if part.role == "output" else names)


def _name_memory_format(layer: Layer) -> tuple[str, ...]:
    """Return one name for channels-last input or weights: both run the same kernels."""
    is_channels_last = layer.channels_last or layer.channels_last_weights
    names = ("channels last",) if is_channels_last else ()
    return (*names, "transposed") if layer.transposed else names


def _hash_structure(part: Part, operators: tuple[tuple[object, ...], ...], setup: Setup) -> str:
    flags = tuple((layer.trains, layer.input_grad) for layer in part.layers)
    return _hash(
        (operators, flags, part.role, is_half_precision(setup), setup.optimizer, setup.phase)
    )


def _list_operators(part: Part) -> tuple[tuple[object, ...], ...]:
    return tuple(
        (layer.kind, _list_tail(layer.tail), layer.reads, layer.join, *name_layout(layer))
        for layer in part.layers
    )


def _list_tail(tail: Sequence[Op]) -> tuple[str, ...]:
    return tuple(op.sizes.get("fn", op.kind) for op in tail if not find_kind(op.kind).is_view)


# Layers of all sizes share a few structures.
_hash = lru_cache(maxsize=4096)(stable_hash)


def _find_point(part: Part, setup: Setup, work: Work) -> tuple[float, ...]:
    first = part.layers[0]
    in_shape, out_shape = input_shape(first), output_shape(part.layers[-1])
    in_channels = max(1, in_shape[channel_axis(first)] if in_shape else 1)
    positions = setup.batch * math.prod(in_shape) / in_channels
    out_channels = setup.batch * math.prod(out_shape) / positions
    elements = positions * (in_channels + out_channels)
    products = positions * in_channels * max(out_channels, 1e-3)
    return (
        math.log(positions),
        math.log(in_channels),
        math.log(max(out_channels, 1e-3)),
        math.log(1.0 + work.flops / products),
        math.log(1.0 + work.size_bytes / elements),
        _measure_alignment(part),
    )


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


def _encode_piece(piece: Piece) -> list[Any]:
    values = list(vars(piece).values())[:-1]
    return [list(value) if isinstance(value, tuple) else value for value in values]


def _decode_piece(values: Sequence[Any]) -> Piece:
    fields: list[Any] = [tuple(one) if isinstance(one, list) else one for one in values]
    return Piece(*fields)


# In JSON a piece is a list: profiles contain thousands. Recurrence matters while fitting only.
add_codec(Piece, _encode_piece, _decode_piece)
