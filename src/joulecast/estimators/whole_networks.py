"""Baselines fitted to whole networks: energy and duration are linear in the counted work.

    constant        E = d
    flops           E = a·FLOPs
    flops-linear    E = a·FLOPs + d
    work-linear     E = a·FLOPs + b·bytes + c·launches + d        a, b, c, d ≥ 0

Fitted to the whole networks of a setup by non-negative least squares of relative errors; to those
of all setups if a setup has fewer networks than there are coefficients; to everything if no whole
network was measured, since small variants say little about networks. All four learn from the same
few networks. The interval is as wide as the error on these networks, with one degree of freedom
less for each coefficient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.base import (
    ALL_SETUPS,
    FitComponent,
    Fitted,
    FittedBySetup,
    Floats,
    Json,
    Prediction,
    Proposal,
    Target,
    count_work,
    decline_probes,
    equicorrelated_covariance,
    fit_work_rates,
    list_layers,
    setup_key,
)
from joulecast.operators import layer_work, network_work
from joulecast.records import LayerEstimate, Network, Observation, Setup, Trial
from joulecast.records.codec import Record, always_stored
from joulecast.system.errors import MissingError
from joulecast.variants.curves import read_block_variant

# Columns of the work of a network, and those that have a coefficient.
_FLOPS, _BYTES, _LAUNCHES, _ONE = range(4)
_COLUMNS = {
    "constant": (_ONE,),
    "flops": (_FLOPS,),
    "flops-linear": (_FLOPS, _ONE),
    "work-linear": (_FLOPS, _BYTES, _LAUNCHES, _ONE),
}
# The error of coefficients that fit exactly is unknown; the paper found about 40 % for FLOPs.
_UNKNOWN_SD_SHARE = 0.4
# Whole networks to measure, if they can be chosen.
_NETWORKS = 6


class WholeNetworkEstimator:
    """Energy that is linear in the work of a network, with coefficients for each setup.

    Attributes:
        campaign: Name of the estimator whose networks all of them share in an evaluation.
    """

    campaign = "flops"
    version = 2
    uses_anchors = False

    def __init__(self, name: str) -> None:
        """Make one of the four estimators."""
        self.name, self._columns = name, _COLUMNS[name]

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is a whole eager step with energy, duration and FLOPs."""
        trial = observation.trial
        if not (trial.execution.is_user_step and observation.energy_j and observation.duration_s):
            return False
        return bool(network_work(trial.network, trial.setup).total.flops)

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the first whole networks of the target: a few coefficients need no more."""
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

    def fit(
        self, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> FittedWorkLines:
        """Fit energy and duration, for each setup and for all of them."""
        used = [seen for seen in observations if self.uses(seen)]
        if not used:
            raise MissingError(
                "no step with energy and FLOPs was observed on this device: measure a net first"
            )
        groups: dict[str, list[Observation]] = {ALL_SETUPS: used}
        for seen in used:
            groups.setdefault(setup_key(seen.trial.setup), []).append(seen)
        common = _fit_line(_prefer_networks(used), self._columns)
        lines = {}
        for key, group in sorted(groups.items()):
            networks = _prefer_networks(group)
            has_enough = len({seen.trial.key for seen in networks}) >= len(self._columns)
            lines[key] = _fit_line(networks, self._columns) if has_enough else common
        return FittedWorkLines(lines, len(used), self.version)

    def load(self, data: Json) -> FittedWorkLines:
        """Restore a fit from its JSON."""
        return FittedWorkLines.from_dict(data)


@dataclass(frozen=True)
class WorkLine(Record):
    """Energy and duration as linear functions of the work of a step.

    Attributes:
        energy: Joules per FLOP, byte, launch and step.
        duration: Seconds per FLOP, byte, launch and step.
        sd_share: Standard deviation of an energy, as a share of it.
        count: Number of observations it was fitted to.
    """

    energy: tuple[float, ...]
    duration: tuple[float, ...]
    sd_share: float
    count: int


@dataclass(frozen=True)
class FittedWorkLines(FittedBySetup, Record):
    """Linear functions of the work, by setup and for all setups."""

    lines: Mapping[str, WorkLine] = always_stored(json_name="rows")
    observation_count: int = always_stored(json_name="seen")
    version: int = always_stored()

    def describe(self) -> tuple[FitComponent, ...]:
        """Return nothing: setups are stored by their hashes."""
        return ()

    def predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        key = setup_key(setup)
        seen = key in self.lines
        line = self.lines[key if seen else ALL_SETUPS]
        work = np.array([_count(network, setup) for network in networks])
        energy_j = work @ np.array(line.energy)
        sds_j = line.sd_share * energy_j
        return Prediction(
            energy_j=energy_j,
            energy_sd_j=sds_j,
            energy_cov=equicorrelated_covariance(networks, sds_j) if joint else None,
            duration_s=work @ np.array(line.duration),
            layers=tuple(
                _list_layers(network, setup, line, seen) if per_layer else ()
                for network in networks
            ),
            unseen_share=(0.0 if seen else 1.0,) * len(networks),
        )


def _prefer_networks(group: Sequence[Observation]) -> Sequence[Observation]:
    """Return the observations of whole networks, or all if there are none."""
    whole = [seen for seen in group if read_block_variant(seen.trial.network) is None]
    return whole or group


def _fit_line(group: Sequence[Observation], columns: tuple[int, ...]) -> WorkLine:
    work = np.array([_count(seen.trial.network, seen.trial.setup) for seen in group])
    energy_j = np.array([(seen.energy_j or 0.0) / seen.trial.execution.steps for seen in group])
    duration_s = np.array([(seen.duration_s or 0.0) / seen.trial.execution.steps for seen in group])
    # Sorted, so that the fit does not depend on the order of the observations.
    order = np.lexsort((duration_s, energy_j, *work.T))
    work, energy_j, duration_s = work[order], energy_j[order], duration_s[order]
    energy, error_share = _fit_columns(work, energy_j, columns)
    duration, _ = _fit_columns(work, duration_s, columns)
    freedom = len(group) - sum(value > 0 for value in energy)
    sd_share = error_share * (len(group) / freedom) ** 0.5 if freedom > 0 else _UNKNOWN_SD_SHARE
    return WorkLine(energy, duration, sd_share, len(group))


def _fit_columns(
    work: Floats, costs: Floats, columns: tuple[int, ...]
) -> tuple[tuple[float, ...], float]:
    """Return a coefficient for each column of the work, zero for those not fitted, and the error.

    The error is the root mean square of the relative errors.
    """
    found, error_share = fit_work_rates(work[:, columns], costs, costs)
    coefficients = np.zeros(work.shape[1])
    coefficients[list(columns)] = found
    return tuple(coefficients.tolist()), error_share


def _count(network: Network, setup: Setup) -> Floats:
    """Return FLOPs, bytes and launches, and 1 for the constant."""
    return np.append(count_work(network_work(network, setup).total), 1.0)


def _list_layers(
    network: Network, setup: Setup, line: WorkLine, seen: bool
) -> tuple[LayerEstimate, ...]:
    """Return energies by the work of each layer; the constant is divided equally."""
    rates, share_j = np.array(line.energy[:_ONE]), line.energy[_ONE] / len(network.layers)
    work = np.array([count_work(layer_work(layer, setup).total) for layer in network.layers])
    return list_layers(network.layers, (work @ rates + share_j).tolist(), seen)
