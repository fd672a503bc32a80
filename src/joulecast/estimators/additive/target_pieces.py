"""The target of profiling as pieces: what its networks consist of, what was measured of it.

Pieces run in isolation, as graphs if the runtime captures them. Graphs hide the host: its time
shows in eager steps of whole networks and, where those cannot be built or may not run, of isolated
pieces, one of each structure. ``acquisition`` decides what is worth most next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache

from joulecast.estimators.additive.decompose import decompose_observations
from joulecast.estimators.additive.pieces import (
    Piece,
    count_pieces,
    make_piece,
    split_pieces,
)
from joulecast.estimators.base import Target
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.records.codec import cache_on_record
from joulecast.variants import Part, make_isolated_trial, read_isolated_part

# Networks that are measured as a whole in any case: the longest, the shortest and a middle one.
HOST_NETWORKS = 3


@dataclass(frozen=True)
class TargetPieces:
    """The pieces of a target, and which of them were measured.

    Attributes:
        networks: Pieces of each network.
        pieces: All distinct pieces, by key.
        parts: How to run each piece in isolation, by key.
        energy_keys: Keys of pieces whose energy was measured.
        duration_keys: Keys of pieces whose duration was measured.
        refused_keys: Keys of pieces that the device could not run.
        observation_count: Observations that show a piece or a network of the target.
    """

    networks: tuple[Mapping[Piece, float], ...]
    pieces: tuple[Piece, ...]
    parts: Mapping[str, Part]
    energy_keys: frozenset[str]
    duration_keys: frozenset[str]
    refused_keys: frozenset[str]
    observation_count: int

    def lacks(self, key: str, with_energy: bool) -> bool:
        """Return whether the energy or the duration of a piece is still to be measured."""
        done = self.energy_keys if with_energy else self.duration_keys
        return key not in self.refused_keys and key not in done

    @property
    def untimed(self) -> list[str]:
        """Keys of the pieces whose duration is still to be measured."""
        return [piece.key for piece in self.pieces if self.lacks(piece.key, with_energy=False)]


def read_target(target: Target, observations: Iterable[Observation]) -> TargetPieces:
    """Return the pieces of a target's networks, and which of them were measured."""
    placed = [split_pieces(network, target.setup) for network in _list_networks(target)]
    parts = {one.piece.key: one.placed_part.part for pieces in placed for one in pieces}
    pieces = {one.piece.key: one.piece for pieces in placed for one in pieces}
    measured, timed, refused = set(), set(), set()
    host_keys = {trial.key for trial in _list_host_trials(target)}
    mode, count = isolated_mode(target), 0
    for observation in observations:
        trial, has_duration = observation.trial, observation.duration_s is not None
        execution = trial.execution
        # Keys are hashes of whole networks, and most observations are of other trials.
        if execution.mode == "eager" and host_keys:
            count += bool(observation.duration_s) and trial.key in host_keys
        if execution.mode != mode or execution.stage != "step":
            continue
        # Pieces depend on all of a setup but its loss; other setups show none of the target's.
        if replace(trial.setup, loss=target.setup.loss) != target.setup:
            continue
        key = _find_isolated_key(trial)
        if key is None:
            continue
        count += bool(observation.duration_s) and key in pieces
        if observation.energy_j is None and not has_duration:
            refused.add(key)
        if observation.energy_j is not None:
            measured.add(key)
        if has_duration:
            timed.add(key)
    run_as = {key: _find_run_key(part, target.setup, mode) for key, part in parts.items()}
    return TargetPieces(
        networks=tuple(map(count_pieces, placed)),
        pieces=tuple(pieces[key] for key in sorted(pieces)),
        parts=parts,
        energy_keys=_select_shown(run_as, measured),
        duration_keys=_select_shown(run_as, timed),
        refused_keys=_select_shown(run_as, refused),
        observation_count=count,
    )


def isolated_mode(target: Target) -> str:
    """Return the mode in which pieces run in isolation."""
    return "graph" if "graph" in target.modes else "eager"


def list_probes(target: Target, pieces: TargetPieces) -> tuple[Trial, ...]:
    """Return time probes of every piece of the target's networks that was not timed yet."""
    mode = isolated_mode(target)
    return tuple(
        make_isolated_trial(pieces.parts[key], target.setup, mode) for key in pieces.untimed
    )


@dataclass(frozen=True)
class HostTrials:
    """Eager steps of whole networks that show host time and were not measured yet.

    Attributes:
        required: Those that are measured in any case.
        required_count: Number of those, measured or not.
        optional: A further one, measured if it helps; None if there is none left.
    """

    required: tuple[Trial, ...]
    required_count: int
    optional: Trial | None


def list_host_trials(target: Target, observations: Iterable[Observation]) -> HostTrials:
    """Return the networks that are still to be timed as the host issues them."""
    tried = _list_eager_keys(observations)
    trials = _list_host_trials(target)
    required = tuple(trial for trial in trials[:HOST_NETWORKS] if trial.key not in tried)
    optional = [trial for trial in trials[HOST_NETWORKS:] if trial.key not in tried]
    return HostTrials(required, min(HOST_NETWORKS, len(trials)), next(iter(optional), None))


def find_host_probe(
    target: Target, pieces: TargetPieces, observations: Sequence[Observation]
) -> Trial | None:
    """Return an eager step of an isolated piece whose structure no eager step has shown."""
    if "graph" not in target.modes:
        return None
    shown = {
        piece.structure
        for one in decompose_observations(filter(_is_issued, observations))
        for piece in one.counts
    }
    tried = _list_eager_keys(observations)
    for piece in sorted(pieces.pieces, key=lambda piece: (piece.size_bytes, piece.key)):
        if piece.structure not in shown and piece.key not in pieces.refused_keys:
            trial = make_isolated_trial(pieces.parts[piece.key], target.setup, "eager")
            if trial.key not in tried:
                return trial
    return None


def _list_eager_keys(observations: Iterable[Observation]) -> set[str]:
    trials = (observation.trial for observation in observations)
    return {trial.key for trial in trials if trial.mode == "eager"}


def _is_issued(observation: Observation) -> bool:
    """Return whether it shows how long the host issues a step."""
    return observation.trial.mode == "eager" and bool(observation.issue_s)


def _select_shown(run_as: Mapping[str, str], shown: Set[str]) -> frozenset[str]:
    """Return the pieces that were shown, by themselves or by the piece that is run for them."""
    return frozenset(key for key, run in run_as.items() if key in shown or run in shown)


@lru_cache(maxsize=65536)
def _find_run_key(part: Part, setup: Setup, mode: str) -> str:
    """Return the key of the piece that is run for a part: an output without weights has no loss."""
    key = _find_isolated_key(make_isolated_trial(part, setup, mode))
    return make_piece(part, setup).key if key is None else key


@cache_on_record
def _find_isolated_key(trial: Trial) -> str | None:
    """Return the key of the piece that a trial runs alone; None if it runs something else."""
    part = read_isolated_part(trial)
    return None if part is None else make_piece(part, trial.setup).key


def _list_networks(target: Target) -> tuple[Network, ...]:
    return target.networks or (target.network,)


def _list_host_trials(target: Target) -> list[Trial]:
    """Return eager steps of the networks, the longest, shortest and middle one first.

    None if pieces do not run as graphs: their durations contain the host then.
    """
    if "graph" not in target.modes:
        return []
    networks = sorted(_list_networks(target), key=lambda one: (len(one.layers), one.name))
    middle = networks[len(networks) // 2]
    ordered = dict.fromkeys((networks[-1], networks[0], middle, *networks))
    return [Trial(network, target.setup) for network in ordered if network.buildable]
