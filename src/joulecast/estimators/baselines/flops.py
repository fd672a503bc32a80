"""The usual baseline: energy proportional to FLOPs, or a straight line over them.

    flops           E = a·F          T = b·F
    flops-linear    E = a·F + c      T = b·F + d      c, d ≥ 0

Fitted to the whole networks of a setup by least relative squares; to everything if no whole network
was measured, since small variants say little about networks. The interval is as wide as the error
on the fitted networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from joulecast.errors import MissingError
from joulecast.estimators.base import (
    ALL_SETUPS,
    FitComponent,
    Floats,
    Json,
    Prediction,
    Proposal,
    Target,
    decline_probes,
    equicorrelated_covariance,
    predict_by_setup,
    setup_key,
)
from joulecast.kinds import layer_work, network_work
from joulecast.records import LayerEstimate, Network, Observation, Setup, Trial
from joulecast.records.codec import Record, always_stored
from joulecast.variants import read_variant

# The error of a factor from one observation is unknown; the paper found about 40 %.
_SINGLE_SD_SHARE = 0.4
# Whole networks to measure, if they can be chosen.
_NETWORKS = 6


class FlopsEstimator:
    """Energy proportional to FLOPs, with one factor per setup."""

    name = "flops"
    version = 1
    has_offset = False

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is a whole eager step with energy, duration and FLOPs."""
        if not (observation.trial.execution.is_user_step and observation.energy_j):
            return False
        return bool(observation.duration_s and _count_flops(observation))

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """Return the first whole networks of the target: a factor needs no more."""
        if target.acquisition == "probe":
            return decline_probes(self.name)
        wanted = [Trial(network, target.setup) for network in target.networks[:_NETWORKS]]
        tried = {seen.trial.key for seen in observations}
        missing = [trial for trial in wanted if trial.key not in tried]
        points = len(wanted) - len(missing)
        if not wanted:
            return Proposal(None, 0.0, "the target names no networks to measure", points)
        if not missing:
            return Proposal(None, 0.0, f"{points} networks were measured", points)
        name = missing[0].network.name or "a network"
        reason = f"{name}, one of {len(wanted)} whole networks"
        return Proposal(missing[0], 1.0, reason, points)

    def fit(self, observations: Sequence[Observation]) -> FittedFlops:
        """Fit energy and duration per FLOP, for each setup and for all of them."""
        used = [seen for seen in observations if self.uses(seen)]
        if not used:
            raise MissingError(
                "no step with energy and FLOPs was observed on this device: measure a net first"
            )
        groups: dict[str, list[Observation]] = {ALL_SETUPS: used}
        for seen in used:
            groups.setdefault(setup_key(seen.trial.setup), []).append(seen)
        lines = {
            key: _fit_line(_prefer_networks(group), self.has_offset)
            for key, group in sorted(groups.items())
        }
        return FittedFlops(lines, len(used))

    def load(self, data: Json) -> FittedFlops:
        """Restore a fit from its JSON."""
        lines = {key: FlopsLine.from_dict(row) for key, row in data["rows"].items()}
        return FittedFlops(lines, data["seen"])


class LinearFlopsEstimator(FlopsEstimator):
    """A straight line over FLOPs, one per setup."""

    name = "flops-linear"
    has_offset = True


@dataclass(frozen=True)
class FlopsLine(Record):
    """Energy and duration as straight lines over FLOPs.

    Attributes:
        sd_share: Standard deviation of an energy, as a share of it.
        count: Number of observations it was fitted to.
    """

    j_per_flop: float
    s_per_flop: float
    sd_share: float = always_stored(json_name="spread")
    count: int = always_stored(json_name="n")
    offset_j: float = 0.0
    offset_s: float = 0.0


@dataclass(frozen=True)
class FittedFlops:
    """Lines over FLOPs, by setup and for all setups."""

    lines: Mapping[str, FlopsLine]
    observation_count: int

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Evaluate the line of each setup; half of the error variance is common to networks."""
        predict = partial(self._predict_setup, joint=joint, per_layer=per_layer)
        return predict_by_setup(predict, networks, setups)

    def describe(self) -> tuple[FitComponent, ...]:
        """Return nothing: setups are stored by their hashes."""
        return ()

    def to_dict(self) -> Json:
        """Return JSON from which ``FlopsEstimator.load`` restores the fit."""
        rows = {key: line.to_dict() for key, line in self.lines.items()}
        return {"seen": self.observation_count, "rows": rows}

    def _predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        key = setup_key(setup)
        seen = key in self.lines
        line = self.lines[key if seen else ALL_SETUPS]
        flops = np.array([network_work(network, setup).total.flops for network in networks])
        energy_j = line.j_per_flop * flops + line.offset_j
        sds_j = line.sd_share * energy_j
        return Prediction(
            energy_j=energy_j,
            energy_sd_j=sds_j,
            energy_cov=equicorrelated_covariance(networks, sds_j) if joint else None,
            duration_s=line.s_per_flop * flops + line.offset_s,
            layers=tuple(
                _list_layers(network, setup, line, seen) if per_layer else ()
                for network in networks
            ),
            unseen_share=(0.0 if seen else 1.0,) * len(networks),
        )


def _prefer_networks(group: Sequence[Observation]) -> Sequence[Observation]:
    """Return the observations of whole networks, or all if there are none."""
    whole = [seen for seen in group if read_variant(seen.trial.network) is None]
    return whole or group


def _fit_line(group: Sequence[Observation], has_offset: bool) -> FlopsLine:
    flops = np.array([_count_flops(seen) for seen in group])
    energy_j = np.array([(seen.energy_j or 0.0) / seen.trial.execution.steps for seen in group])
    duration_s = np.array([(seen.duration_s or 0.0) / seen.trial.execution.steps for seen in group])
    # Sorted, so that the fit does not depend on the order of the observations.
    order = np.lexsort((duration_s, energy_j, flops))
    flops, energy_j, duration_s = flops[order], energy_j[order], duration_s[order]
    slope, offset = _fit_slope(flops, energy_j, has_offset)
    slope_s, offset_s = _fit_slope(flops, duration_s, has_offset)
    errors = (slope * flops + offset) / energy_j - 1.0
    parameters = 1 + has_offset
    return FlopsLine(
        j_per_flop=slope,
        s_per_flop=slope_s,
        sd_share=float(np.sqrt(np.mean(errors**2)))
        if len(group) > parameters
        else _SINGLE_SD_SHARE,
        count=len(group),
        offset_j=offset,
        offset_s=offset_s,
    )


def _fit_slope(flops: Floats, values: Floats, has_offset: bool) -> tuple[float, float]:
    """Return a and c that minimise the squares of (a·F + c)/y - 1, neither of them negative."""
    f, one = flops / values, 1.0 / values
    slope = float(f.sum() / (f @ f))
    if not has_offset or len(values) < 2:
        return slope, 0.0
    scale = float(flops.mean())
    found = np.linalg.lstsq(np.column_stack([f / scale, one]), np.ones(len(f)), rcond=None)[0]
    if found[1] <= 0:
        return slope, 0.0
    if found[0] <= 0:
        return 0.0, float(one.sum() / (one @ one))
    return float(found[0]) / scale, float(found[1])


def _count_flops(observation: Observation) -> float:
    return network_work(observation.trial.network, observation.trial.setup).total.flops


def _list_layers(
    network: Network, setup: Setup, line: FlopsLine, seen: bool
) -> tuple[LayerEstimate, ...]:
    """Return energies by FLOPs; the offset is divided equally."""
    offset_j = line.offset_j / len(network.layers)
    rows = []
    for layer in network.layers:
        energy_j = line.j_per_flop * layer_work(layer, setup).total.flops + offset_j
        name = layer.name or layer.kind
        rows.append(LayerEstimate(name, layer.kind, energy_j, layer.calls, seen))
    return tuple(rows)
