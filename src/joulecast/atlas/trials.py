"""List the trials of an atlas, in an order of which every prefix is a good design.

    anchors, then their energies ─▶ one trial of every label ─▶ more, where they tell most
                                         └ in between: eager trials of blocks, for host time

Trials are isolated leaves and blocks of a population. About one in five is measured with its
energy: the first of every kind of leaf, since kinds differ in level, and every fifth of a label,
whose order is spread over its sizes and so over rates. Precisions take turns, so that they show
different sizes. What was observed is left out: an interrupted atlas continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from joulecast.atlas.anchors import make_anchor_trials
from joulecast.atlas.design import order_points
from joulecast.atlas.device_scale import DeviceScale
from joulecast.atlas.population import Population, PopulationPiece
from joulecast.kinds import Work, peak_memory
from joulecast.records import Observation, Trial
from joulecast.variants import make_isolated_network, make_isolated_trial

# Peak memory is counted without workspaces and what an allocator keeps.
_MEMORY_MARGIN = 1.3
# Every this many trials of a label, energy is measured too. The first with energy is the first of
# a kind's first precision, the third of its other ones and the fourth of a block's.
_ENERGY_EVERY = 5
_NEW_KIND_RANK, _KNOWN_KIND_RANK, _BLOCK_RANK = 0, 2, 3
# Blocks repeat what their leaves show; they tell what running them together changes.
_BLOCK_WEIGHT = 0.25
# One trial for host time after this many others.
_HOST_EVERY = 8
MOST_TRIALS = 5000


@dataclass(frozen=True)
class AtlasTrial:
    """A trial of an atlas and why it is made.

    Attributes:
        with_energy: Whether its energy is measured, not only its duration.
        label: Kind and regime of the piece that it runs.
        reason: ``anchor``, ``piece`` or ``host``.
        work: Work of one copy of the piece; none for anchors.
    """

    trial: Trial
    with_energy: bool
    label: str
    reason: str
    work: Work = Work()


def list_trials(
    population: Population,
    scale: DeviceScale,
    modes: tuple[str, ...] = ("eager",),
    observations: Iterable[Observation] = (),
    most: int = MOST_TRIALS,
    phase: str = "train",
) -> tuple[AtlasTrial, ...]:
    """Return what is still to be measured, the most useful first.

    Args:
        population: Networks that the atlas is for.
        scale: What is assumed about the device: trials that need more memory or time are left out.
        modes: Modes of the runtime.
        observations: What was measured or refused before.
        most: How many trials an atlas has at most, observed ones included.
        phase: Phase of the population.
    """
    mode = "graph" if "graph" in modes else "eager"
    sized = (_SizedPiece(one, _find_memory_bytes(one)) for one in population.pieces)
    pieces = [one for one in sized if _can_run(one, scale)]
    own = _interleave(
        _list_piece_trials(pieces, scale, mode),
        _list_host_trials(pieces, scale) if mode == "graph" else iter(()),
    )
    planned = tuple(islice(chain(_list_anchors(scale, modes, phase), own), most))
    return drop_observed(planned, observations)


def drop_observed(
    trials: Sequence[AtlasTrial], observations: Iterable[Observation]
) -> tuple[AtlasTrial, ...]:
    """Return the trials that are still to be measured, in their order."""
    timed, metered = _read_observed(observations)
    if not (timed or metered):
        return tuple(trials)
    return tuple(
        one for one in trials if one.trial.key not in (metered if one.with_energy else timed)
    )


def _read_observed(observations: Iterable[Observation]) -> tuple[set[str], set[str]]:
    """Return keys of trials that need not be timed, and of those that need no energy."""
    timed, metered = set(), set()
    for one in observations:
        is_refused = one.duration_s is None and one.energy_j is None
        timed.add(one.trial.key)
        if is_refused or one.energy_j is not None:
            metered.add(one.trial.key)
    return timed, metered


def _list_anchors(scale: DeviceScale, modes: tuple[str, ...], phase: str) -> Iterator[AtlasTrial]:
    """Yield all anchors by duration, which takes two seconds, then those that matter by energy."""
    trials = make_anchor_trials(scale, modes, phase)
    for with_energy in (False, True):
        for trial in trials:
            yield AtlasTrial(trial, with_energy, _name_anchor(trial), "anchor")


def _name_anchor(trial: Trial) -> str:
    layer = trial.network.layers[0]
    return f"{layer.sizes.get('fn', layer.kind)} {trial.setup.precision}"


@dataclass(frozen=True)
class _SizedPiece:
    """A piece and the memory that one copy of it takes."""

    own: PopulationPiece
    memory_bytes: float


def _list_piece_trials(
    pieces: Sequence[_SizedPiece], scale: DeviceScale, mode: str
) -> Iterator[AtlasTrial]:
    design = order_points(
        [one.own.piece.label for one in pieces],
        [one.own.piece.point for one in pieces],
        [one.own.work_share * (_BLOCK_WEIGHT if one.own.is_block else 1.0) for one in pieces],
    )
    first_labels: dict[str, str] = {}
    for point in design:
        one = pieces[point.index]
        piece = one.own.piece
        kind = piece.kind
        is_new = first_labels.setdefault(kind, piece.label) == piece.label
        turn = _NEW_KIND_RANK if is_new else _KNOWN_KIND_RANK
        turn = _BLOCK_RANK if one.own.is_block else turn
        with_energy = point.rank % _ENERGY_EVERY == turn
        trial = _isolate(one, scale, mode)
        yield AtlasTrial(trial, with_energy, piece.label, "piece", _find_work(one))


def _list_host_trials(pieces: Sequence[_SizedPiece], scale: DeviceScale) -> Iterator[AtlasTrial]:
    """Yield one eager trial of every structure of blocks, at its smallest size.

    Graphs hide the host, and small blocks show it without waiting for the device. Structures that
    carry most work come first.
    """
    smallest: dict[str, _SizedPiece] = {}
    shares: dict[str, float] = {}
    for one in pieces:
        if one.own.is_block:
            structure = one.own.piece.structure
            shares[structure] = shares.get(structure, 0.0) + one.own.work_share
            best = smallest.setdefault(structure, one)
            smallest[structure] = min(best, one, key=_order_by_size)
    for structure in sorted(smallest, key=lambda name: (-shares[name], name)):
        one = smallest[structure]
        trial = _isolate(one, scale, "eager")
        yield AtlasTrial(trial, False, one.own.piece.label, "host", _find_work(one))


def _order_by_size(one: _SizedPiece) -> tuple[float, str]:
    return one.own.piece.size_bytes, one.own.piece.key


def _interleave(pieces: Iterator[AtlasTrial], hosts: Iterator[AtlasTrial]) -> Iterator[AtlasTrial]:
    for number, one in enumerate(pieces, start=1):
        yield one
        if number % _HOST_EVERY == 0:
            yield from islice(hosts, 1)
    yield from hosts


def _can_run(one: _SizedPiece, scale: DeviceScale) -> bool:
    """Return whether one copy of a piece trains, fits the device and takes little time."""
    precision, part = one.own.setup.precision, one.own.part
    if part.role == "output" and not any(layer.trains for layer in part.layers):
        return False  # nothing would train
    if precision not in scale.flops_per_s or one.memory_bytes > scale.memory_bytes:
        return False
    return scale.duration_s(_find_work(one), precision) <= scale.longest_step_s


def _find_work(one: _SizedPiece) -> Work:
    piece = one.own.piece
    return Work(piece.flops, piece.size_bytes, piece.launches)


def _isolate(one: _SizedPiece, scale: DeviceScale, mode: str) -> Trial:
    """Return the isolated trial, with as many copies as fit the device."""
    trial = make_isolated_trial(one.own.part, one.own.setup, mode)
    fitting = int(scale.memory_bytes / one.memory_bytes)
    copies = min(trial.execution.copies, scale.most_copies, fitting)
    return replace(trial, execution=replace(trial.execution, copies=copies))


def _find_memory_bytes(one: PopulationPiece) -> float:
    return _MEMORY_MARGIN * max(1, peak_memory(make_isolated_network(one.part), one.setup))
