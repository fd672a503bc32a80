"""The target of profiling as pieces: what its nets consist of, what was seen, what is lacking.

Pieces run alone, as graphs where the runtime captures them. Graphs hide the host: it shows in eager
steps of whole nets, and where those cannot be built or may not run, of pieces alone, one of each
structure. What of all that is worth most next is choose.py's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from joulecast.estimators.additive.decompose import read_looks
from joulecast.estimators.additive.pieces import (
    Count,
    Piece,
    Stand,
    count_stands,
    make_piece,
    split_pieces,
)
from joulecast.estimators.base import Target
from joulecast.records import Network, Observation, Trial
from joulecast.variants import Part, make_isolated_trial, read_isolated_part, split_blocks

HOST_NETS = 3


@dataclass(frozen=True)
class Aim:
    """The target as pieces, and what is known of each.

    Attributes:
        nets: Pieces of each net.
        parts: How to run each piece alone, by key.
        measured: Pieces seen in joules; ``timed`` those seen in seconds; ``refused`` neither.
        looks: Observations that show some of it.
    """

    nets: tuple[tuple[Count, ...], ...]
    pieces: tuple[Piece, ...]
    parts: Mapping[str, Part]
    measured: frozenset[str]
    timed: frozenset[str]
    refused: frozenset[str]
    looks: int

    def lacks(self, key: str, energy: bool) -> bool:
        """Whether a look is still to be made."""
        return key not in self.refused and key not in (self.measured if energy else self.timed)


def read_aim(target: Target, observations: Iterable[Observation]) -> Aim:
    """What the target's nets consist of, and what was seen of it."""
    stands = [_split(network, target) for network in _list_nets(target)]
    nets = tuple(count_stands(net) for net in stands)
    parts = {stand.piece.key: stand.place.part for net in stands for stand in net}
    pieces = {stand.piece.key: stand.piece for net in stands for stand in net}
    measured, timed, refused = set(), set(), set()
    hosts = {trial.key for trial in _list_host_nets(target)}
    mode, looks = find_mode(target), 0
    for seen in observations:
        how = seen.trial.execution
        part = read_isolated_part(seen.trial) if how.mode == mode and how.stage == "step" else None
        looks += bool(seen.duration_s) and seen.trial.key in hosts
        if part is None:
            continue
        key = make_piece(part, seen.trial.setup).key
        looks += bool(seen.duration_s) and key in pieces
        if seen.energy_j is None and seen.duration_s is None:
            refused.add(key)
        if seen.energy_j is not None:
            measured.add(key)
        if seen.duration_s is not None:
            timed.add(key)
    ordered = tuple(pieces[key] for key in sorted(pieces))
    mine = frozenset(pieces)
    return Aim(nets, ordered, parts, mine & measured, mine & timed, mine & refused, looks)


def list_unprobed(target: Target, aim: Aim) -> tuple[Trial, ...]:
    """Return time probes of every piece of the target's networks that was not timed yet."""
    mode = find_mode(target)
    missing = [piece.key for piece in aim.pieces if aim.lacks(piece.key, energy=False)]
    return tuple(make_isolated_trial(aim.parts[key], target.setup, mode) for key in missing)


def _list_nets(target: Target) -> tuple[Network, ...]:
    return target.networks or (target.network,)


def _split(network: Network, target: Target) -> tuple[Stand, ...]:
    """Whole blocks: what is profiled for a net is what the net repeats."""
    places = split_blocks(network)
    known = {make_piece(place.part, target.setup).label for place in places}
    return split_pieces(network, target.setup, known)


def find_mode(target: Target) -> str:
    """How pieces run alone."""
    return "graph" if "graph" in target.modes else "eager"


@dataclass(frozen=True)
class Untimed:
    """Whole nets that show the host at work: those measured in any case, one where it helps.

    Attributes:
        wanted: How many are measured in any case, done or not.
    """

    first: tuple[Trial, ...]
    more: Trial | None
    wanted: int


def list_untimed(target: Target, observations: Iterable[Observation]) -> Untimed:
    """Whole nets that are still to be timed as the host issues them."""
    tried = {seen.trial.key for seen in observations}
    trials = _list_host_nets(target)
    first = tuple(trial for trial in trials[:HOST_NETS] if trial.key not in tried)
    more = [trial for trial in trials[HOST_NETS:] if trial.key not in tried]
    return Untimed(first, next(iter(more), None), min(HOST_NETS, len(trials)))


def _list_host_nets(target: Target) -> list[Trial]:
    """Where graphs hide the host: the longest net, the shortest, the middle one, then the rest."""
    if "graph" not in target.modes:
        return []
    nets = sorted(_list_nets(target), key=lambda network: (len(network.layers), network.name))
    wanted = dict.fromkeys((nets[-1], nets[0], nets[len(nets) // 2], *nets))
    return [Trial(network, target.setup) for network in wanted if network.buildable]


def find_unissued(target: Target, aim: Aim, observations: Sequence[Observation]) -> Trial | None:
    """A piece alone, as the host issues it, of a structure that no eager step has shown."""
    if "graph" not in target.modes:
        return None
    looks = [look for look in read_looks(observations) if look.mode == "eager" and look.issue_s]
    shown = {piece.frame for look in looks for piece, _ in look.counts}
    tried = {seen.trial.key for seen in observations}
    for piece in sorted(aim.pieces, key=lambda piece: (piece.size_bytes, piece.key)):
        if piece.frame not in shown and piece.key not in aim.refused:
            trial = make_isolated_trial(aim.parts[piece.key], target.setup, "eager")
            if trial.key not in tried:
                return trial
    return None
