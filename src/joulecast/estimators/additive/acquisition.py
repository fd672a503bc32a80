"""Profiling for a purpose: what to look at next so that the totals of some nets become known.

    1  two looks at every kind of piece that the target's nets hold, at three quarters and at a
       quarter of their work, so that no kind is guessed
    2  where the host has a clock of its own, eager steps of three of the nets, one of them as soon
       as every kind was looked at once
    3  then, of all pieces, in joules or in seconds, and of further nets for the host, the look that
       lowers the relative variance of the nets' totals most for the device seconds it costs

The variance that a look would leave needs no measurement, only the covariance of what it shows with
the totals (posterior.foresee). The paper's rule can be asked for instead: the piece of largest
deviation, whatever the nets need. It stops when the totals are known within the target's share, or
when nothing that can be measured would help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from joulecast.errors import MissingError
from joulecast.estimators.additive.decompose import find_off_share, read_looks, take_near
from joulecast.estimators.additive.encode import make_batch
from joulecast.estimators.additive.model import NetworkTotals, State, total_nets
from joulecast.estimators.additive.pieces import Piece
from joulecast.estimators.additive.targets import (
    Aim,
    find_mode,
    find_unissued,
    list_unprobed,
    list_untimed,
    read_aim,
)
from joulecast.estimators.base import Proposal, Target
from joulecast.gp.inference import MANY_ROWS, foresee
from joulecast.gp.joint import Floats
from joulecast.records import Observation, Trial
from joulecast.variants import describe_part, make_isolated_trial, read_isolated_part

FitState = Callable[[Sequence[Observation]], State]

LOOKS_PER_KIND = 2
# What a look costs where none was made yet, in device seconds: with joules, and seconds only.
_USUAL_COSTS_S = (2.0, 0.5)
# A look that would take less than this share off the variance is not worth it.
_LEAST_GAIN = 0.002
# After all layers of a net were timed, joules of one are worth it if they take off this share.
_PROBE_GAIN = 0.05
_SURE = 1.96


def choose_aim(target: Target, observations: Sequence[Observation], fit: FitState) -> Proposal:
    """The most useful look, or the reason why there is none."""
    observations = _take_near(target, observations)
    aim = read_aim(target, observations)
    points = aim.looks
    if target.acquisition == "probe":
        probe = _propose_probe(target, aim, observations)
        return probe if probe.trial else _propose_doubted(target, aim, observations, fit, probe)
    hosts = list_untimed(target, observations)
    for turn in range(LOOKS_PER_KIND):
        first = _find_stratum(aim, turn)
        if first is not None:
            return _propose(target, aim, first, True, 1.0, points, "its kind is new")
        # One net soon, so that the host is known even where there is little time, then the others.
        if len(hosts.first) > (max(hosts.wanted - 1, 0) if turn == 0 else 0):
            return _propose_host(hosts.first[0], 1.0, points, energy=True)
    if target.acquisition == "missing":
        return _propose_probe(target, aim, observations)
    try:
        state = fit(observations)
    except MissingError as error:
        return Proposal(None, 1.0, str(error), points)
    off_share = find_off_share(read_looks(observations))
    return _choose_look(target, aim, state, _read_costs(observations), off_share, hosts.more)


def _propose_probe(target: Target, aim: Aim, observations: Sequence[Observation]) -> Proposal:
    """Seconds of the next layer that nobody has timed; then as the host issues it."""
    missing = [piece.key for piece in aim.pieces if aim.lacks(piece.key, energy=False)]
    unsure, points = len(missing) / len(aim.pieces), aim.looks
    if missing:
        words = f"{len(missing)} to go"
        proposal = _propose(target, aim, missing[0], False, unsure, points, words)
        is_probe = target.acquisition == "probe"
        return replace(proposal, probes=list_unprobed(target, aim)) if is_probe else proposal
    unissued = find_unissued(target, aim, observations)
    if unissued is not None:
        return _propose_host(unissued, unsure, points, energy=False)
    return Proposal(None, 0.0, "every layer of the net was timed", points)


def _propose_doubted(
    target: Target, aim: Aim, observations: Sequence[Observation], fit: FitState, probe: Proposal
) -> Proposal:
    """Joules of a layer whose seconds made the nets strange; none where that helps little."""
    try:
        state = fit(observations)
    except MissingError:
        return probe
    totals = total_nets(state, aim.nets, find_off_share(read_looks(observations)))
    unsure = float(np.mean(_SURE * np.sqrt(totals.var) / totals.energy_j))
    aimed = replace(target, acquisition="target")
    scores = _score(aimed, aim, state, totals.energy_j, totals.lean, (1.0, 1.0))
    best = max(scores, key=lambda key: scores[key][1], default=None)
    now = float(np.mean(totals.var / totals.energy_j**2))
    if best is None or unsure <= target.uncertainty_share or scores[best][1] < _PROBE_GAIN * now:
        return replace(probe, uncertainty_share=unsure)
    why = f"takes {scores[best][1] / now:.0%} off the variance"
    return _propose(target, aim, best[0], True, unsure, aim.looks, why)


def _take_near(target: Target, observations: Sequence[Observation]) -> Sequence[Observation]:
    """Where a device knows very much, what shows kinds of the target: each look waits for a fit."""
    if len(observations) <= MANY_ROWS:
        return observations
    return take_near(observations, {piece.label for piece in read_aim(target, ()).pieces})


def _find_stratum(aim: Aim, turn: int) -> str | None:
    """A piece of a kind that was not looked at more often, from the middle of a half of them."""
    groups: dict[str, list[Piece]] = {}
    for piece in aim.pieces:
        groups.setdefault(piece.label, []).append(piece)
    for group in (groups[label] for label in sorted(groups)):
        group.sort(key=lambda piece: (piece.size_bytes, piece.flops, piece.key))
        seen = sum(piece.key in aim.measured for piece in group)
        open_keys = [piece.key for piece in group if aim.lacks(piece.key, energy=True)]
        if seen <= turn and open_keys:
            quantile = (0.75, 0.25)[turn]
            return open_keys[round(quantile * (len(open_keys) - 1))]
    return None


def _propose_host(trial: Trial, unsure: float, points: int, energy: bool) -> Proposal:
    words = f"{trial.network.name or 'a layer'}, as the host issues it"
    return Proposal(trial, unsure, words, points, energy)


def _read_costs(observations: Iterable[Observation]) -> tuple[float, float]:
    """Device seconds of a look in joules, and of one in seconds."""
    costs: tuple[list[float], list[float]] = ([], [])
    for seen in observations:
        if seen.cost_s > 0 and read_isolated_part(seen.trial) is not None:
            costs[0 if seen.energy_j is not None else 1].append(seen.cost_s)
    energy_s = median(costs[0]) if costs[0] else _USUAL_COSTS_S[0]
    return energy_s, median(costs[1]) if costs[1] else 0.25 * energy_s


def _choose_look(
    target: Target,
    aim: Aim,
    state: State,
    costs_s: tuple[float, float],
    off_share: float,
    host: Trial | None,
) -> Proposal:
    points = aim.looks
    totals = total_nets(state, aim.nets, off_share)
    unsure = float(np.mean(_SURE * np.sqrt(totals.var) / totals.energy_j))
    if unsure <= target.uncertainty_share:
        why = f"the nets are known within {target.uncertainty_share:.0%}"
        return Proposal(None, unsure, why, points)
    scores = _score(target, aim, state, totals.energy_j, totals.lean, costs_s)
    now = float(np.mean(totals.var / totals.energy_j**2))
    best = max(scores, key=lambda key: scores[key][0], default=None)
    by_host = _gain_of_host(target, state, totals)
    rival = 0.0 if best is None else scores[best][0]
    if host is not None and by_host > max(rival * costs_s[1], _LEAST_GAIN * now):
        return _propose_host(host, unsure, points, energy=False)
    if best is None:
        return Proposal(None, unsure, "everything that the nets hold was measured", points)
    if (
        target.acquisition == "target"
        and max(gain for _, gain in scores.values()) < _LEAST_GAIN * now
    ):
        left = max(totals.parts, key=lambda name: float(totals.parts[name].sum()))
        return Proposal(None, unsure, f"no look would help more: what is left is {left}", points)
    key, energy = best
    why = f"takes {scores[best][1] / now:.0%} off the variance"
    if target.acquisition != "target":
        why = "where it is least sure"
    return _propose(target, aim, key, energy, unsure, points, why)


def _gain_of_host(target: Target, state: State, totals: NetworkTotals) -> float:
    """By how much one more net timed as a whole lowers the mean relative variance."""
    if target.acquisition != "target":
        return 0.0
    return state.clock.gain_share * float(np.mean(totals.parts["host"] / totals.energy_j**2))


def _score(
    target: Target,
    aim: Aim,
    state: State,
    energy_j: Floats,
    lean: Floats,
    costs_s: tuple[float, float],
) -> dict[tuple[str, bool], tuple[float, float]]:
    """For every look its score, and by how much it lowers the mean relative variance."""
    batch = make_batch(aim.nets)
    seconds = foresee(
        state.time.learnt, batch.nets(state.table.field(batch.pieces), state.time.keys)
    )
    field = state.table.field(batch.pieces, seconds.own)
    joules = foresee(state.energy.learnt, batch.nets(field, state.energy.keys))
    by_time = np.mean((seconds.cover * (lean / energy_j)[:, None]) ** 2, axis=0) / seconds.var
    by_energy = np.mean((joules.cover / energy_j[:, None]) ** 2, axis=0) / joules.var + by_time
    if target.acquisition != "target":
        # The paper's rule: wherever the deviation is largest, at any price.
        found = joules if target.acquisition == "energy" else seconds
        by_energy, by_time, costs_s = np.sqrt(found.var), np.zeros(len(found.var)), (1.0, 1.0)
    scores = {}
    for at, piece in enumerate(batch.pieces):
        for energy, gain in ((True, by_energy[at]), (False, by_time[at])):
            if gain > 0 and aim.lacks(piece.key, energy):
                cost_s = costs_s[0 if energy else 1]
                scores[piece.key, energy] = (float(gain) / cost_s, float(gain))
    return scores


def _propose(
    target: Target, aim: Aim, key: str, energy: bool, unsure: float, points: int, why: str
) -> Proposal:
    part = aim.parts[key]
    trial = make_isolated_trial(part, target.setup, find_mode(target))
    words = "joules" if energy else "seconds"
    return Proposal(trial, unsure, f"{words} of {describe_part(part)} ({why})", points, energy)
