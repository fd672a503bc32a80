"""Our own method: layers alone, one joint process, two clocks.

    time      d = (k·F + l·B + n·launches)·(1 + residual)   from every look with device seconds
    energy    g = (a·F + b·B + v·s + w·(d - s))·(1 + residual)  s: d up to a short launch each
    device    G = Σ g,  D = Σ d                             the device's own numbers
    eager     E = G + P0·(T - D)                            what the user pays: clock.py

A layer's cost is jagged in its sizes, but given its time its energy is smooth: energy is measured
at few points, time wherever a net will be asked about. Where a runtime captures graphs, looks are
graph replays, which no host delays, and eager looks enter as E - P0·(T - D). Where it does not,
there is one clock: looks are eager, E - P0·T adds up, and so does T, exactly so where the host
waits for every operator, as on a CPU. Which of both holds is a property of the device, read from
what was observed.

Pieces are in pieces.py, what an observation shows of them in looks.py, the process in joint.py and
posterior.py, what is learnt in state.py, and where to measure next in aim.py
and choose.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from joulecast.errors import MissingError
from joulecast.estimators.additive.acquisition import choose_aim
from joulecast.estimators.additive.decompose import (
    Look,
    can_look,
    find_idle,
    find_off_share,
    find_unit,
    read_looks,
)
from joulecast.estimators.additive.encode import (
    Table,
    choose_words,
    find_launch,
    lend_kinds,
    lend_units,
    list_pieces,
    make_batch,
    make_prior,
    make_rows,
    make_table,
)
from joulecast.estimators.additive.host_time import fit_clock
from joulecast.estimators.additive.model import (
    NetworkTotals,
    Process,
    State,
    ask_times,
    mean_nets,
    total_nets,
)
from joulecast.estimators.additive.own_runs import name_net, read_runs, renew
from joulecast.estimators.additive.pieces import Stand, count_stands, split_pieces
from joulecast.estimators.base import (
    FittedItem,
    Prediction,
    Proposal,
    Target,
    half_shared_covariance,
)
from joulecast.gp.inference import DRAWS, Answer, learn
from joulecast.gp.kernels import Floats
from joulecast.kinds import layer_work
from joulecast.records import Layer, LayerEstimate, Network, Observation, Setup
from joulecast.variants import unfold_blocks

Json = dict[str, Any]

# An eager look of which the device has less than this share says nothing about the device.
_LEAST_DEVICE_SHARE = 0.15
_LEAST_SHARE = 0.01
# How far sums of layers alone are off for all nets of the same kinds, one deviation.
_ABOVE_SPREAD = 0.02
# A look, what of its joules adds up, and the relative variance of that.
Used = tuple[Look, float, float]
Pair = tuple[Network, Setup]


class AdditiveEstimator:
    """Sum of isolated layers and blocks: energy from few of them, duration from many."""

    name = "additive"
    version = 4

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is a whole step with an energy or a duration."""
        return can_look(observation)

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """Return the trial that tells most about the target's networks for its device time."""
        return choose_aim(target, observations, fit_state)

    def fit(self, observations: Sequence[Observation]) -> FittedAdditive:
        """Fit the processes of duration and energy, and the model of host time."""
        state = fit_state(observations)
        data = {
            "version": self.version,
            "seen": sum(map(self.uses, observations)),
            "off_share": find_off_share(read_looks(observations)),
            "runs": read_runs(observations, state.table.labels),
            "looks": _count_kinds(state),
        }
        # Through JSON, so that a fresh fit and a stored one agree to the last digit.
        return self.load({**data, **state.to_dict()})

    def load(self, data: Json) -> FittedAdditive:
        """Restore a fit from its JSON."""
        return FittedAdditive(
            State.from_dict(data), data["off_share"], data["runs"], data["seen"], data["looks"]
        )


@dataclass(frozen=True)
class FittedAdditive:
    """A fit of the additive estimator.

    Attributes:
        model: The fitted processes.
        sum_error_share: Standard deviation of a network's total around the sum of its layers, as a
            share of the total.
        runs: Energy and duration of the networks that were measured as a whole.
        kind_counts: Numbers of isolated pieces with energy and with duration, by kind.
    """

    model: State
    sum_error_share: float
    runs: Json
    observation_count: int
    kind_counts: Json

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Sum over the pieces of each network, with the joint covariance of what they share."""
        model, pairs = self.model, list(zip(networks, setups, strict=True))
        stands, between = _split(model, pairs)
        nets = list(map(count_stands, stands))
        totals = total_nets(model, nets, self.sum_error_share, joint, between)
        cov = None
        if totals.cov is not None:
            cov = totals.cov + half_shared_covariance(pairs, self.sum_error_share * totals.energy_j)
        known_runs = [self.runs.get(name_net(net)) for net in stands] if self.runs else []
        layers = _list_layers(model, networks, stands, totals) if per_layer else ((),) * len(pairs)
        prediction = Prediction(
            energy_j=totals.energy_j,
            energy_sd_j=np.sqrt(totals.var if cov is None else np.diag(cov)),
            energy_cov=cov,
            duration_s=totals.duration_s,
            layers=layers,
            unseen_share=_share_unseen(model, totals),
            device_energy_j=totals.device_energy_j,
            uncertainty_sources=_share_doubts(totals),
            duration_sd_s=np.sqrt(totals.duration_var),
        )
        return renew(prediction, known_runs) if any(known_runs) else prediction

    def predict_means(self, networks: Sequence[Network], setups: Sequence[Setup]) -> Floats:
        """Return the mean energies of ``predict``, in half its time."""
        stands, between = _split(self.model, list(zip(networks, setups, strict=True)))
        if self.runs and any(name_net(net) in self.runs for net in stands):
            return self.predict(networks, setups).energy_j
        return mean_nets(self.model, list(map(count_stands, stands)), between)

    def describe(self) -> tuple[FittedItem, ...]:
        """Return the layer kinds that were measured in isolation."""
        return tuple(
            FittedItem(label, counts["joules"], counts["seconds"])
            for label, counts in self.kind_counts.items()
        )

    def to_dict(self) -> Json:
        """Return JSON from which ``AdditiveEstimator.load`` restores the fit."""
        data = {
            "version": AdditiveEstimator.version,
            "seen": self.observation_count,
            "off_share": self.sum_error_share,
            "runs": self.runs,
            "looks": self.kind_counts,
        }
        return {**data, **self.model.to_dict()}


def fit_state(observations: Sequence[Observation], draws: int = DRAWS) -> State:
    """Everything that observations teach.

    Raises:
        MissingError: No layer was timed, or no energy was measured.
    """
    looks = sorted(read_looks(observations), key=_order)
    form = "graph" if any(look.mode == "graph" for look in looks) else "eager"
    timed = [look for look in looks if look.mode == form and look.duration_s]
    if not timed or not any(look.energy_j for look in looks):
        raise MissingError(
            "no energy of any layer was measured on this device: run `joulecast profile NET` there"
        )
    idle_w = find_idle(observations) or 0.0
    table = make_table(looks)
    time = _learn_time(timed, table, draws)
    if form == "graph":
        # Eager seconds are the host's too: how short its launches are says nothing of the device.
        table = replace(table, launch_s=find_launch(timed))
    busy = ask_times(table, time, make_batch([look.counts for look in looks]))
    unit = find_unit(observations)
    clock = fit_clock(looks, busy.total, busy.var, unit)
    used = _read_energies(looks, busy, form, idle_w)
    energy = _learn_energy(used, table, time, draws, idle_w if form == "graph" else None, unit)
    return State(form, idle_w, table, time, energy, clock)


def _order(look: Look) -> tuple[str, float, float]:
    return look.key, look.energy_j or 0.0, look.duration_s or 0.0


def _learn_time(looks: Sequence[Look], table: Table, draws: int) -> Process:
    pieces = list_pieces(looks)
    values = np.array([look.duration_s for look in looks], float)
    rows = make_rows(looks, pieces, values, np.array([look.duration_var for look in looks]))
    field = table.field(pieces)
    prior = make_prior(field, rows, choose_words(looks)[0], len(table.overheads))
    return Process(pieces, learn(field, rows, prior, draws))


def _learn_energy(
    used: Sequence[Used],
    table: Table,
    time: Process,
    draws: int,
    idle_w: float | None,
    unit: str,
) -> Process:
    """Joules; ``idle_w`` is None where the host has no clock of its own."""
    looks = [look for look, _, _ in used]
    values, known = [value for _, value, _ in used], [var for _, _, var in used]
    pieces = list_pieces(looks)
    alone = make_batch([[(piece, 1.0)] for piece in pieces])
    field = table.field(pieces, ask_times(table, time, alone).own)
    rows = make_rows(looks, pieces, np.array(values), np.array(known))
    words = choose_words(looks)[1]
    prior = make_prior(field, rows, words, len(table.overheads), idle_w or 0.0)
    # Where the host has no clock of its own, sums are off by more (looks.py), and not alike.
    spread = 0.0 if idle_w is None else _ABOVE_SPREAD
    above = lend_kinds(looks, pieces, field, prior, spread)
    rows = replace(rows, above=above, units=lend_units(looks, unit))
    return Process(pieces, learn(field, rows, prior, draws, spread=spread))


def _read_energies(looks: Sequence[Look], busy: Answer, form: str, idle_w: float) -> list[Used]:
    """What of each look's joules adds up over layers, with its relative variance."""
    used: list[Used] = []
    for look, busy_s, busy_var in zip(looks, busy.total, busy.var, strict=True):
        if not look.energy_j or not look.duration_s:
            continue
        off_s, off_var = 0.0, 0.0
        if form == "eager":
            off_s = look.duration_s
        elif look.mode == "eager":
            off_s, off_var = max(0.0, look.duration_s - float(busy_s)), float(busy_var)
        value = look.energy_j - idle_w * off_s
        if value > (_LEAST_DEVICE_SHARE if form == "graph" else _LEAST_SHARE) * look.energy_j:
            scale = (look.energy_j / value) ** 2
            var = look.energy_var * scale + idle_w**2 * off_var / value**2
            used.append((look, value, var))
    if not used:
        raise MissingError(
            "all that was measured on this device was its host: run `joulecast profile NET` there"
        )
    return used


# ---------------------------------------------------------------------------------------------
# For people


def _split(state: State, pairs: Sequence[Pair]) -> tuple[list[tuple[Stand, ...]], list[float]]:
    """Pieces of each network, and the host's calls between them."""
    known = set(state.table.labels)
    stands = [split_pieces(network, setup, known) for network, setup in pairs]
    return stands, [_count_between(*pair) for pair in pairs]


def _count_between(network: Network, setup: Setup) -> float:
    """Calls between layers that a step makes, in calls of forward and backward together."""
    if network.totals is None:
        return 0.0
    return network.totals.between * (1.0 if setup.phase == "train" else 0.5)


def _list_layers(
    state: State,
    networks: Sequence[Network],
    nets: Sequence[Sequence[Stand]],
    totals: NetworkTotals,
) -> tuple[tuple[LayerEstimate, ...], ...]:
    """What each layer costs: its own, and waiting for the host by its launches."""
    own = dict(zip((p.key for p in totals.batch.pieces), totals.own_j.tolist(), strict=True))
    known = {piece.label for piece in state.energy.pieces}
    found = []
    for at, (network, stands) in enumerate(zip(networks, nets, strict=True)):
        launches = sum(stand.piece.launches * stand.count for stand in stands)
        waiting_j = float(totals.energy_j[at] - totals.device_energy_j[at]) / max(launches, 1)
        leaves = unfold_blocks(network.layers)
        costs = [
            LayerEstimate(leaf.name or leaf.kind, leaf.kind, 0.0, leaf.calls) for leaf in leaves
        ]
        for stand in stands:
            inside_j = own[stand.piece.key] * float(totals.scale[at])
            cost_j = inside_j + stand.piece.launches * waiting_j
            for index, share in _share_out(stand):
                seen = stand.piece.label in known
                energy_j = cost_j * stand.count * share
                costs[index] = replace(costs[index], energy_j=energy_j, seen=seen)
        found.append(tuple(costs))
    return tuple(found)


def _share_out(stand: Stand) -> list[tuple[int, float]]:
    """Which layers a piece stands for, and how they share its cost: by the bytes they move."""
    layers, start = stand.place.layers, stand.place.index
    if len(layers) == 1:
        return [(start, 1.0)]
    moved = [_count_moved(layer) for layer in layers]
    total = sum(moved) or 1.0
    return [(start + at, size / total) for at, size in enumerate(moved)]


@lru_cache(maxsize=8192)
def _count_moved(layer: Layer) -> float:
    return layer_work(layer, Setup()).total.size_bytes


def _count_kinds(state: State) -> Json:
    """For every kind how many distinct pieces were seen alone in joules, and in seconds."""
    joules, seconds = (
        Counter(process.pieces[at].label for at in _list_alone(process.learnt.rows.counts))
        for process in (state.energy, state.time)
    )
    return {
        label: {"joules": joules[label], "seconds": seconds[label]} for label in state.table.labels
    }


def _list_alone(counts: Floats) -> set[int]:
    """Pieces that a row shows alone."""
    rows = np.flatnonzero(np.count_nonzero(counts, axis=1) == 1)
    return set(np.nonzero(counts[rows])[1].tolist())


def _share_unseen(state: State, totals: NetworkTotals) -> tuple[float, ...]:
    """Share of the device's joules in kinds that were never measured."""
    known = {piece.label for piece in state.energy.pieces}
    batch = totals.batch
    unseen = np.array([piece.label not in known for piece in batch.pieces], float)
    costs = batch.count * totals.own_j[batch.piece]
    whole = np.maximum(batch.sum_up(costs), 1e-300)
    return tuple((batch.sum_up(costs * unseen[batch.piece]) / whole).tolist())


def _share_doubts(totals: NetworkTotals) -> tuple[dict[str, float], ...]:
    """Where each net's variance comes from, largest first."""
    shares = []
    for at, total in enumerate(totals.var):
        parts = {name: float(var[at] / total) for name, var in totals.parts.items()}
        shares.append(dict(sorted(parts.items(), key=lambda part: -part[1])))
    return tuple(shares)
