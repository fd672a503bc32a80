"""Pieces: what `additive` sums over, a layer or a repeated block of a network under a setup.

    Network ──split──▶ Part (a layer, or a repeated block) + Setup ──▶ Piece

A block is the sum of its **leaves**, the operators of its layers; so is a layer with a tail or a
loss, and an operator is its own leaf. A piece's **label** is its kind under one regime (precision,
phase, threads), its **point** what the residual of its duration depends on (``piece_points``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from joulecast.estimators.additive.fused_leaves import (
    FUSED,
    count_moved_bytes,
    find_compiled_share,
    is_library_operator,
    run_as_library,
    starts_chain,
)
from joulecast.estimators.additive.layer_operators import (
    count_fork_work,
    gives_half,
    has_several_operators,
    list_operators,
    share_moved_alone,
)
from joulecast.estimators.additive.piece_names import find_class, name_kind
from joulecast.estimators.additive.piece_points import (
    AXES,
    count_executed_flops,
    find_loss_point,
    find_point,
)
from joulecast.kinds import (
    HOST_CALLS,
    Work,
    add_host_calls,
    count_host_calls,
    find_kind,
    is_half_precision,
    layer_work,
    loss_work,
    output_shape,
    uses_autocast,
)
from joulecast.records import (
    FLOAT_PRECISIONS,
    Layer,
    Network,
    Op,
    Setup,
    name_layout,
    stable_hash,
)
from joulecast.records.network import order_branches
from joulecast.variants import (
    BLOCK,
    Part,
    PlacedPart,
    make_isolated_network,
    match_phase,
    match_precision,
    split_blocks,
    split_network,
)

OVERHEAD_PREFIX = "overhead of "
OVERHEAD = "overhead"
"""Operator class of what an imported run pays once."""
# FLOPs that take as long as moving a byte, about: weighs an update against a layer's cost.
_FLOPS_PER_BYTE = 100.0


@dataclass(frozen=True)
class Piece:
    """A part under a setup, with all that the estimator needs of it.

    Attributes:
        key: Identity: equal pieces have equal keys, on every machine.
        kind: Kinds of its layers, or a hash of a block's operators.
        regime: Precision, phase, threads and processor.
        phase: ``train`` or ``inference``.
        precision: Its precision, on which the peak rate of the device depends.
        operator_class: Its first layer's class of operators, or ``block``.
        structure: Hash of its operators without sizes, which decide how long the host issues it.
        padded_flops: FLOPs that run: with channels rounded up to tiles, without what is masked.
        launches: Kernels of forward and backward; the update of all weights takes very few.
        point: Its coordinates, one for each of AXES.
        host_calls: Number of host calls, one for each type in HOST_CALLS.
        leaves: Of a block, or a layer of several operators, its leaves with how often it runs each.
        alone_bytes: Bytes that it moves alone, as it is measured: its inputs are one tensor then.
        is_compiled: Its operators are fused by a compiler; none of its leaves is.
        operator: Of a single operator, its layer, its setup and whether its input is in half
            precision.
    """

    key: str
    kind: str = field(compare=False)
    regime: str = field(compare=False)
    phase: str = field(compare=False)
    precision: str = field(compare=False)
    operator_class: str = field(compare=False)
    structure: str = field(compare=False)
    flops: float = field(compare=False)
    padded_flops: float = field(compare=False)
    size_bytes: float = field(compare=False)
    launches: int = field(compare=False)
    point: tuple[float, ...] = field(compare=False)
    host_calls: tuple[float, ...] = field(compare=False)
    leaves: tuple[tuple[Piece, float], ...] = field(default=(), compare=False)
    alone_bytes: float = field(default=0.0, compare=False)
    is_compiled: bool = field(default=False, compare=False)
    operator: tuple[Layer, Setup, bool] | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """Its kind and regime."""
        return f"{self.kind} {self.regime}" if self.regime else self.kind

    @property
    def rate_precision(self) -> str:
        """The precision whose peak rate bounds it; that of fp32 where none is known."""
        return self.precision if self.precision in FLOAT_PRECISIONS else "fp32"

    @property
    def is_block(self) -> bool:
        """Whether it is a repeated block rather than a layer."""
        return self.operator_class == BLOCK

    @property
    def own_leaves(self) -> tuple[tuple[Piece, float], ...]:
        """Its leaves; of a single operator, itself. Compiled leaves count less: they share work."""
        if not self.is_compiled:
            return self.leaves or ((self, 1.0),)
        return tuple(
            (leaf, count * find_compiled_share(leaf.operator_class)) for leaf, count in self.leaves
        )

    @property
    def leaves_alone(self) -> tuple[tuple[Piece, float], ...]:
        """Its leaves as they are measured; in a block, inputs are different tensors even then."""
        if self.is_block:
            return self.own_leaves
        return tuple((_run_alone(leaf), count) for leaf, count in self.own_leaves)


@dataclass(frozen=True)
class PlacedPiece:
    """A piece at its place in a network.

    Attributes:
        setup: The setup that it runs under.
        count: How often a step runs it: its calls, less the updates it does not repeat. Weights are
            updated once, however often their layer is called and whatever layers share them.
    """

    piece: Piece
    placed_part: PlacedPart
    setup: Setup
    count: float

    @property
    def is_block(self) -> bool:
        """Whether it is a whole repeated block."""
        return self.placed_part.part.role == BLOCK


@lru_cache(maxsize=65536)
def make_piece(part: Part, setup: Setup) -> Piece:
    """Return the piece of a part under a setup."""
    part = match_phase(match_precision(part, setup), setup)
    if part.role == BLOCK:
        part = replace(part, layers=order_branches(part.layers))
    works = [_count_work(layer, setup, part.half_input) for layer in part.layers]
    work = _add_work(part, setup, works)
    is_block = part.role == BLOCK
    leaves = _split_block(part, setup) if is_block else _split_layer(part, setup)
    operators = _list_operators(part)
    layers = [layer.to_dict() for layer in part.layers]
    padded_flops = sum(map(count_executed_flops, part.layers, works))
    return Piece(
        key=stable_hash(
            [layers, part.role == "output", part.half_input, _select_setup(part, setup)]
        ),
        kind=name_kind(part, operators),
        regime=_name_regime(setup),
        phase=setup.phase,
        precision=setup.precision,
        operator_class=BLOCK if is_block else find_class(part.layers[0]),
        structure=_hash_structure(part, operators, setup),
        flops=work.flops,
        padded_flops=padded_flops,
        size_bytes=work.size_bytes,
        launches=_count_launches(leaves) if setup.compiled else work.launches,
        point=find_point(part, setup, work, padded_flops),
        host_calls=_sum_leaf_calls(leaves) if setup.compiled else _sum_calls(part, setup),
        leaves=leaves,
        is_compiled=setup.compiled,
        operator=None if leaves or is_block else (part.layers[0], setup, part.half_input),
        alone_bytes=work.size_bytes * _share_moved_alone(part.layers[0], setup),
    )


def make_overhead_piece(source: str) -> Piece:
    """Return what every imported run of a source pays once: start-up and evaluation."""
    name = OVERHEAD_PREFIX + source
    calls, origin = (0.0,) * len(HOST_CALLS), (0.0,) * len(AXES)
    return Piece(name, name, "", "", "", OVERHEAD, name, 0.0, 0.0, 0.0, 0, origin, calls)


def split_pieces(network: Network, setup: Setup) -> tuple[PlacedPiece, ...]:
    """Return the pieces of a network's step, repeated blocks whole.

    Of several batches whose gradients are accumulated, the last one also updates the weights.
    """
    parts = split_blocks(network)
    batches = setup.accumulate
    if batches < 2:
        return tuple(_place_pieces(parts, setup))
    last = _place_pieces(parts, replace(setup, accumulate=1))
    others = _place_pieces(parts, replace(setup, accumulate=0))
    return (*last, *(replace(one, count=one.count * (batches - 1)) for one in others))


def count_pieces(pieces: Iterable[PlacedPiece], times: float = 1.0) -> dict[Piece, float]:
    """Return the distinct pieces with how often a step runs each."""
    counts: dict[Piece, float] = {}
    for one in pieces:
        counts[one.piece] = counts.get(one.piece, 0.0) + one.count * times
    return counts


def group_alike(networks: Sequence[Sequence[PlacedPiece]]) -> list[list[int]]:
    """Return the numbers of networks in groups whose layers have the same labels.

    The same few observations matter for all networks of a group. Networks of many kinds together
    would leave each other too few: 29 had standard deviations up to twice as large as one by one.
    """
    groups: list[tuple[set[str], list[int]]] = []
    for number, placed in enumerate(networks):
        labels = {leaf.label for one in placed for leaf, _ in one.piece.own_leaves}
        for known, numbers in groups:
            if labels <= known or known <= labels:
                known |= labels
                numbers.append(number)
                break
        else:
            groups.append((labels, [number]))
    return [numbers for _, numbers in groups]


def _place_pieces(parts: Iterable[PlacedPart], setup: Setup) -> Iterator[PlacedPiece]:
    """Yield the parts as pieces, except those that do no work at all."""
    for one in parts:
        piece = make_piece(one.part, setup)
        if piece.flops or piece.size_bytes:
            yield PlacedPiece(piece, one, setup, _count_repeats(one, setup))


def _count_repeats(placed: PlacedPart, setup: Setup) -> float:
    repeats = placed.calls - 1 + any(layer.tied for layer in placed.layers)
    if not repeats:
        return float(placed.calls)
    work = layer_work(placed.part.layers[0], setup)
    cost = work.total.size_bytes + work.total.flops / _FLOPS_PER_BYTE
    return placed.calls - repeats * work.update.size_bytes / max(cost, 1.0)


def _select_setup(part: Part, setup: Setup) -> dict[str, object]:
    """Return the settings that change a piece; the loss only at the end of a network."""
    settings: dict[str, object] = replace(setup, cuda_graphs=False).to_dict()
    loss = settings.pop("loss")
    if setup.phase == "inference":
        settings.pop("optimizer")
    if not any(layer_work(layer, setup).params for layer in part.layers):
        settings.pop("accumulate", None)
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


def _split_block(part: Part, setup: Setup) -> tuple[tuple[Piece, float], ...]:
    """Return the operators of a block, none of which is a loss."""
    leaves: dict[Piece, float] = {}
    for placed in split_network(make_isolated_network(part)):
        for layer in placed.part.layers:
            piece = make_piece(Part("hidden", (layer,), placed.part.half_input), setup)
            for leaf, repeats in piece.leaves or ((piece, 1.0),):
                if leaf.flops or leaf.size_bytes:
                    leaves[leaf] = leaves.get(leaf, 0.0) + placed.calls * repeats
    return tuple(leaves.items())


def _split_layer(part: Part, setup: Setup) -> tuple[tuple[Piece, float], ...]:
    """Return the operators of layers and the loss; nothing of a single eager operator."""
    has_loss = part.role == "output"
    is_single = len(part.layers) == 1 and not has_several_operators(part.layers[0])
    if is_single and not has_loss and not setup.compiled:
        return ()
    leaves: dict[Piece, float] = {}
    half = part.half_input
    for layer in part.layers:
        previous = None
        for operator, half_input in list_operators(layer, half):
            if setup.compiled:
                leaf = _make_compiled_leaf(operator, previous, half_input, setup)
            else:
                leaf = make_piece(Part("hidden", (operator,), half_input), setup)
            if leaf.flops or leaf.size_bytes:
                leaves[leaf] = leaves.get(leaf, 0.0) + 1.0
            half = gives_half(operator, half_input)
            previous = operator
    if has_loss and setup.phase == "train":
        leaves[_make_loss_piece(output_shape(part.layers[-1]), setup)] = 1.0
    return tuple(leaves.items())


@lru_cache(maxsize=65536)
def _make_compiled_leaf(
    operator: Layer, previous: Layer | None, half_input: bool, setup: Setup
) -> Piece:
    """Return an operator of a compiled layer: as in an eager step if a library runs it."""
    eager = replace(setup, compiled=False)
    # Casts of activations are fused into the operators before and after.
    half_input = half_input or uses_autocast(setup)
    if is_library_operator(operator):
        return make_piece(Part("hidden", (run_as_library(operator),), half_input), eager)
    leaf = make_piece(Part("hidden", (replace(operator, channels_last=False),), half_input), eager)
    moved_bytes = count_moved_bytes(operator, previous, eager)
    launches = leaf.launches if starts_chain(previous) or moved_bytes == leaf.size_bytes else 0
    part = Part("hidden", (operator,))
    return replace(
        leaf,
        key=f"{leaf.key} {FUSED} {moved_bytes:.0f}",
        kind=f"{FUSED} {leaf.kind}",
        operator_class=FUSED,
        size_bytes=moved_bytes,
        launches=launches,
        point=find_point(part, eager, Work(0.0, moved_bytes, launches), 0.0),
        host_calls=(float(launches), *leaf.host_calls[1:]),
        alone_bytes=moved_bytes,
        operator=None,
    )


def _count_launches(leaves: Iterable[tuple[Piece, float]]) -> int:
    return round(sum(leaf.launches * count for leaf, count in leaves))


def _sum_leaf_calls(leaves: Iterable[tuple[Piece, float]]) -> tuple[float, ...]:
    calls = (tuple(count * one for one in leaf.host_calls) for leaf, count in leaves)
    return add_host_calls((0.0,) * len(HOST_CALLS), *calls)


@lru_cache(maxsize=4096)
def _make_loss_piece(shape: tuple[int, ...], setup: Setup) -> Piece:
    work = loss_work(shape, setup)
    kind = "cross_entropy loss" if setup.loss == "own" else f"{setup.loss} loss"
    channels = shape[-1] if shape else 1
    rows = setup.batch * math.prod(shape) / channels
    return Piece(
        key=stable_hash([kind, list(shape), setup.batch, _name_regime(setup)]),
        kind=kind,
        regime=_name_regime(setup),
        phase=setup.phase,
        precision=setup.precision,
        operator_class="elementwise",
        structure=kind,
        flops=0.0,
        padded_flops=0.0,
        size_bytes=work.size_bytes,
        launches=work.launches,
        point=find_loss_point(rows, channels, work.size_bytes),
        host_calls=(float(work.launches), *(0.0,) * (len(HOST_CALLS) - 1)),
        alone_bytes=work.size_bytes,
    )


@lru_cache(maxsize=4096)
def _run_alone(leaf: Piece) -> Piece:
    """Return an operator as it is measured, alone."""
    if leaf.alone_bytes == leaf.size_bytes:
        return leaf
    return replace(leaf, key=f"{leaf.key} alone", size_bytes=leaf.alone_bytes)


def _share_moved_alone(layer: Layer, setup: Setup) -> float:
    return share_moved_alone(layer, _has_gradient(layer, setup))


def _has_gradient(layer: Layer, setup: Setup) -> bool:
    return setup.phase == "train" and layer.input_grad


def _count_work(layer: Layer, setup: Setup, half_input: bool) -> Work:
    """Return the work of a layer; one update of all weights together launches next to nothing."""
    work = layer_work(layer, setup, half_input)
    fork = count_fork_work(layer, work.forward) if _has_gradient(layer, setup) else Work()
    launches = work.forward.launches + work.backward.launches
    return replace(work.total, launches=launches) + fork


@lru_cache(maxsize=256)
def _name_regime(setup: Setup) -> str:
    """Return what of a setup decides which residuals are shared."""
    regime = setup.precision if setup.phase == "train" else f"{setup.precision} {setup.phase}"
    regime += f" {setup.threads} threads" if setup.threads else ""
    regime += f" on {setup.processor}" if setup.processor else ""
    return regime + (" benchmark" if setup.cudnn_benchmark else "")


def _hash_structure(part: Part, operators: tuple[tuple[object, ...], ...], setup: Setup) -> str:
    flags = tuple((layer.trains, layer.input_grad) for layer in part.layers)
    optimizer = setup.optimizer if setup.phase == "train" else ""
    how = is_half_precision(setup), optimizer, setup.phase
    return _hash((operators, flags, part.role, *how, *([FUSED] if setup.compiled else [])))


def _list_operators(part: Part) -> tuple[tuple[object, ...], ...]:
    return tuple(
        (layer.kind, _list_tail(layer.tail), layer.reads, layer.join, *name_layout(layer))
        for layer in part.layers
    )


def _list_tail(tail: Sequence[Op]) -> tuple[str, ...]:
    return tuple(op.sizes.get("fn", op.kind) for op in tail if not find_kind(op.kind).is_view)


# Layers of all sizes share a few structures.
_hash = lru_cache(maxsize=4096)(stable_hash)
