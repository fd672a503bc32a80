"""Pieces: a network as what `additive` sums, each with its physics and its place among its kind.

    Network ──split──▶ Part (a layer, or a repeated block) + Setup ──▶ Piece

A piece's **label** is its kind under one regime (precision, phase, threads): residuals are shared
within it. Its **place** x is the same six numbers for every kind, all logarithms, so that no kind
needs rules of its own: positions, inflow and outflow of a position, FLOPs and bytes over them, and
how whole the widths of its matrix products are.
Tails, kernels, strides, groups and missing gradients all show in the last two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from joulecast.kinds import (
    CALLS,
    Work,
    add_calls,
    channel_axis,
    count_calls,
    find_kind,
    input_shape,
    is_half,
    layer_work,
    loss_work,
    output_shape,
)
from joulecast.records import Layer, Network, Op, Setup, name_layout, stable_hash
from joulecast.variants import (
    BLOCK,
    Part,
    PlacedPart,
    match_precision,
    split_blocks,
    split_network,
)

AXES = ("positions", "inflow", "outflow", "flops", "bytes", "alignment")
Count = tuple["Piece", float]
Structure = tuple[tuple[object, ...], ...]
OVERHEAD = "overhead of "
# Channels that matrix units take at once, about: products of narrower ones cost as much.
TILE = 16
# FLOPs that take as long as moving a byte, about: what an update is of a layer's cost.
_FLOPS_PER_BYTE = 100.0
# Products want rows in multiples of this many numbers; how far apart those that are not lie.
_ROW = 8
_ALIGN_SCALE = 0.4
_WIDTHS = ("cin", "cout", "head_dim")


@dataclass(frozen=True)
class Piece:
    """A part under a setup, as the estimator sees it.

    Attributes:
        key: Equal pieces have equal keys, on every machine.
        label: Its kind and regime.
        rate: Precision and phase: FLOPs of one rate cost alike.
        frame: Its structure without sizes: what issuing it takes the host.
        padded_flops: FLOPs as if all channels came in whole tiles.
        place: One number for each of AXES.
        calls: What the host does for it, one number for each of CALLS.
    """

    key: str
    label: str
    rate: str
    frame: str
    flops: float
    padded_flops: float
    size_bytes: float
    launches: int
    place: tuple[float, ...]
    calls: tuple[float, ...]

    @property
    def kind_name(self) -> str:
        """The kind of its first layer, or the function of an elementwise one."""
        return re.split(r"[ +]", self.label, maxsplit=1)[0]


@dataclass(frozen=True)
class Stand:
    """A piece where it stands in a network.

    Attributes:
        count: How often a step counts it: its calls, but weights are updated once, however often
            their layer is called and whoever shares them.
    """

    piece: Piece
    place: PlacedPart
    count: float

    @property
    def is_block(self) -> bool:
        """Whether it is a whole repeated block."""
        return self.place.part.role == BLOCK


@lru_cache(maxsize=65536)
def make_piece(part: Part, setup: Setup) -> Piece:
    """The piece that a part is under a setup."""
    part = match_precision(part, setup)
    works = [layer_work(layer, setup).total for layer in part.layers]
    work = _add_work(part, setup, works)
    structure = _list_structure(part)
    layers = [layer.to_dict() for layer in part.layers]
    rate, regime = _name_regime(setup)
    return Piece(
        key=stable_hash([layers, part.role == "output", part.half_input, _list_words(part, setup)]),
        label=f"{_name_kind(part, structure)} {regime}",
        rate=rate,
        frame=_name_frame(part, structure, setup),
        flops=work.flops,
        padded_flops=sum(map(_pad_flops, part.layers, works)),
        size_bytes=work.size_bytes,
        launches=work.launches,
        place=_place(part, setup, work),
        calls=_sum_calls(part, setup),
    )


def make_overhead(source: str) -> Piece:
    """What every run from one source pays once, whatever it trains: start-up, evaluation."""
    label = OVERHEAD + source
    nothing, nowhere = (0.0,) * len(CALLS), (0.0,) * len(AXES)
    return Piece(label, label, "", label, 0.0, 0.0, 0.0, 0, nowhere, nothing)


def split_pieces(network: Network, setup: Setup, known: Collection[str]) -> tuple[Stand, ...]:
    """What a step of a network consists of; blocks where their kind is known.

    Args:
        network: The net.
        setup: How it is trained.
        known: Labels that were measured. A block of another one is opened, as long as that shows
            something that was.
    """
    stands = list(_stand_up(split_blocks(network), setup))
    if all(stand.piece.label in known or not stand.is_block for stand in stands):
        return tuple(stands)
    leaves = {place.index: place for place in split_network(network)}
    found: list[Stand] = []
    for stand in stands:
        span = range(stand.place.index, stand.place.index + len(stand.place.layers))
        inside = [leaves[index] for index in span if index in leaves]
        opened = list(_stand_up(inside, setup))
        strange = stand.is_block and stand.piece.label not in known
        better = any(leaf.piece.label in known for leaf in opened)
        found += opened if strange and better else [stand]
    return tuple(found)


def count_stands(stands: Iterable[Stand]) -> tuple[Count, ...]:
    """Pieces with how often a step runs each."""
    return tuple((stand.piece, stand.count) for stand in stands)


def _stand_up(places: Iterable[PlacedPart], setup: Setup) -> Iterator[Stand]:
    """Places as pieces; what does no work at all is left out."""
    for place in places:
        piece = make_piece(place.part, setup)
        if piece.flops or piece.size_bytes:
            yield Stand(piece, place, _count_repeats(place, setup))


def _count_repeats(place: PlacedPart, setup: Setup) -> float:
    repeats = place.calls - 1 + any(layer.tied for layer in place.layers)
    if not repeats:
        return float(place.calls)
    work = layer_work(place.part.layers[0], setup)
    cost = work.total.size_bytes + work.total.flops / _FLOPS_PER_BYTE
    return place.calls - repeats * work.update.size_bytes / max(cost, 1.0)


def _list_words(part: Part, setup: Setup) -> dict[str, object]:
    """What of a setup makes another piece; only what ends a net has a loss."""
    words = setup.to_dict()
    loss = words.pop("loss")
    ends = {"loss": "cross_entropy" if loss == "own" else loss} if part.role == "output" else {}
    return {**words, **ends}


def merge_counts(counts: Iterable[Count], times: float = 1.0) -> dict[str, tuple[Piece, float]]:
    """Distinct pieces by key, with how often each counts."""
    merged: dict[str, tuple[Piece, float]] = {}
    for piece, count in counts:
        before = merged[piece.key][1] if piece.key in merged else 0.0
        merged[piece.key] = (piece, before + count * times)
    return merged


def _add_work(part: Part, setup: Setup, works: Sequence[Work]) -> Work:
    total = works[0]
    for work in works[1:]:
        total = total + work
    if part.role == "output":
        total = total + loss_work(output_shape(part.layers[-1]), setup)
    return total


def _sum_calls(part: Part, setup: Setup) -> tuple[float, ...]:
    calls = add_calls(*(count_calls(layer, setup) for layer in part.layers))
    if part.role != "output":
        return calls
    return calls[0] + loss_work(output_shape(part.layers[-1]), setup).launches, *calls[1:]


def _pad_flops(layer: Layer, work: Work) -> float:
    """FLOPs with channels rounded up to whole tiles: narrow layers leave most of a tile empty."""
    flops = work.flops
    if layer.sizes.get("groups", 1) > 1:
        return flops
    for name in _WIDTHS:
        width = int(layer.sizes.get(name, TILE))
        flops *= TILE * math.ceil(width / TILE) / width
    return flops


@lru_cache(maxsize=256)
def _name_regime(setup: Setup) -> tuple[str, str]:
    """What decides the cost of a FLOP, and all that decides how residuals are shared."""
    rate = setup.precision if setup.phase == "train" else f"{setup.precision} {setup.phase}"
    regime = rate + (f" {setup.threads} threads" if setup.threads else "")
    return rate, regime + (" benchmark" if setup.cudnn_benchmark else "")


def _name_kind(part: Part, structure: Structure) -> str:
    """A leaf's kind, a block's structure; what ends a net holds its loss."""
    if part.role == BLOCK:
        return f"block:{_hash_words(structure)[:8]}"
    names = [
        " ".join([str(layer.sizes.get("fn", layer.kind)), *_mark_layout(layer)])
        for layer in part.layers
    ]
    return "+".join([*names, "loss"] if part.role == "output" else names)


def _mark_layout(layer: Layer) -> tuple[str, ...]:
    """What lies channels last, be it input or weights, runs the same kernels: one kind."""
    return ("channels last",) if name_layout(layer) else ()


def _name_frame(part: Part, structure: Structure, setup: Setup) -> str:
    flags = tuple((layer.trains, layer.input_grad) for layer in part.layers)
    return _hash_words((structure, flags, part.role, is_half(setup), setup.optimizer, setup.phase))


def _list_structure(part: Part) -> Structure:
    return tuple(
        (layer.kind, _list_tail(layer.tail), layer.reads, layer.join, *name_layout(layer))
        for layer in part.layers
    )


def _list_tail(tail: Sequence[Op]) -> tuple[str, ...]:
    return tuple(op.sizes.get("fn", op.kind) for op in tail if not find_kind(op.kind).is_view)


# Layers of all sizes share a few structures.
_hash_words = lru_cache(maxsize=4096)(stable_hash)


def _place(part: Part, setup: Setup, work: Work) -> tuple[float, ...]:
    first = part.layers[0]
    inside, outside = input_shape(first), output_shape(part.layers[-1])
    inflow = max(1, inside[channel_axis(first)] if inside else 1)
    positions = setup.batch * math.prod(inside) / inflow
    outflow = setup.batch * math.prod(outside) / positions
    moved = positions * (inflow + outflow)
    return (
        math.log(positions),
        math.log(inflow),
        math.log(max(outflow, 1e-3)),
        math.log(1.0 + work.flops / (positions * inflow * max(outflow, 1e-3))),
        math.log(1.0 + work.size_bytes / moved),
        _align(part),
    )


def _align(part: Part) -> float:
    """How whole the widths of matrix products are: 0 where one is odd, most in eights.

    Products of rows that do not fill 16 bytes take other kernels; convolutions pad by themselves.
    """
    layers = [layer for layer in part.layers if not find_kind(layer.kind).pads_widths]
    widths = [int(layer.sizes.get(name, _ROW)) for layer in layers for name in _WIDTHS]
    return _ALIGN_SCALE * math.log2(min((math.gcd(width, _ROW) for width in widths), default=_ROW))
