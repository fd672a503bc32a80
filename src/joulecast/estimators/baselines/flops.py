"""The baseline that everybody uses: joules in proportion to FLOPs, or a straight line over them.

    flops           E = a·F          T = b·F
    flops-linear    E = a·F + c      T = b·F + d      c and d never negative

All of least relative error over the whole nets of a Setup; over everything where no whole net was
seen, since small variants say little about nets. It asks for a few whole nets like those that it
is for. Its interval is as wide as it was wrong on what it learnt from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import MissingError
from joulecast.estimators.base import (
    FittedItem,
    Prediction,
    Proposal,
    Target,
    half_shared_covariance,
    predict_by_setup,
    without_probes,
)
from joulecast.estimators.subtractive.curves import is_plain_step
from joulecast.kinds import layer_work, network_work
from joulecast.records import LayerEstimate, Network, Observation, Setup, Trial, stable_hash
from joulecast.variants import read_variant

Json = dict[str, Any]
Floats = NDArray[np.float64]

# Nobody knows how wrong a factor from one observation is; the paper found about 40 %.
_USUAL_SPREAD = 0.4
ANY = "*"


# Whole nets that a factor is learnt from, where they can be chosen.
_NETS = 6


class FlopsEstimator:
    """FLOPs-proportional, one factor for each Setup."""

    name = "flops"
    version = 1
    has_offset = False

    def uses(self, observation: Observation) -> bool:
        """Whole eager steps with energy and FLOPs."""
        flops = _count_flops(observation.trial.network, observation.trial.setup)
        plain = is_plain_step(observation.trial.execution)
        return bool(plain and observation.energy_j and observation.duration_s and flops)

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """Whole nets, as they come: a factor needs no guidance."""
        if target.acquisition == "probe":
            return without_probes(self.name)
        wanted = [Trial(network, target.setup) for network in target.networks[:_NETS]]
        tried = {seen.trial.key for seen in observations}
        missing = [trial for trial in wanted if trial.key not in tried]
        points = len(wanted) - len(missing)
        if not missing:
            why = f"{points} nets were measured" if wanted else "it learns from what was measured"
            return Proposal(None, 0.0, why, points)
        name = missing[0].network.name or "a whole net"
        return Proposal(missing[0], 1.0, f"{name}, one of {len(wanted)} whole nets", points)

    def fit(self, observations: Sequence[Observation]) -> FittedFlops:
        """Fit joules and seconds per FLOP, for each setup and for all of them."""
        used = [seen for seen in observations if self.uses(seen)]
        if not used:
            raise MissingError(
                "nothing with energy and FLOPs was observed yet: measure a net first"
            )
        rows: dict[str, list[Observation]] = {ANY: used}
        for seen in used:
            rows.setdefault(_row_name(seen.trial.setup), []).append(seen)
        fits = {
            name: _fit_row(_prefer_nets(row), self.has_offset) for name, row in sorted(rows.items())
        }
        return FittedFlops(fits, len(used))

    def load(self, data: Json) -> FittedFlops:
        """Restore a fit from its JSON."""
        return FittedFlops(data["rows"], data["seen"])


@dataclass(frozen=True)
class FittedFlops:
    """Straight lines over FLOPs, one for each setup and one for all."""

    rows: dict[str, Json]
    observation_count: int

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Multiply FLOPs by a factor; half of the error variance is common to all networks."""
        predict = partial(self._predict_setup, joint=joint, per_layer=per_layer)
        return predict_by_setup(predict, networks, setups)

    def _predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        name = _row_name(setup)
        seen = name in self.rows
        row = self.rows[name if seen else ANY]
        flops = np.array([_count_flops(network, setup) for network in networks])
        energy_j = row["j_per_flop"] * flops + row.get("offset_j", 0.0)
        sds_j = row["spread"] * energy_j
        return Prediction(
            energy_j=energy_j,
            energy_sd_j=sds_j,
            energy_cov=half_shared_covariance(networks, sds_j) if joint else None,
            duration_s=row["s_per_flop"] * flops + row.get("offset_s", 0.0),
            layers=tuple(
                _list_layers(network, setup, row, seen) if per_layer else () for network in networks
            ),
            unseen_share=(0.0 if seen else 1.0,) * len(networks),
        )

    def describe(self) -> tuple[FittedItem, ...]:
        """Return nothing: setups have no names that a person would know."""
        return ()

    def to_dict(self) -> Json:
        """Return JSON from which ``FlopsEstimator.load`` restores the fit."""
        return {"seen": self.observation_count, "rows": self.rows}


class LinearFlopsEstimator(FlopsEstimator):
    """A straight line over FLOPs, one for each Setup."""

    name = "flops-linear"
    has_offset = True


def _prefer_nets(row: Sequence[Observation]) -> Sequence[Observation]:
    """Whole nets where there are any."""
    whole = [seen for seen in row if read_variant(seen.trial.network) is None]
    return whole or row


def _fit_row(row: Sequence[Observation], has_offset: bool) -> Json:
    flops = np.array([_count_flops(seen.trial.network, seen.trial.setup) for seen in row])
    energy = np.array([(seen.energy_j or 0.0) / seen.trial.execution.steps for seen in row])
    time = np.array([(seen.duration_s or 0.0) / seen.trial.execution.steps for seen in row])
    # Sorted, so that the order of observations leaves no trace.
    order = np.lexsort((time, energy, flops))
    flops, energy, time = flops[order], energy[order], time[order]
    slope, offset = _fit_line(flops, energy, has_offset)
    slope_s, offset_s = _fit_line(flops, time, has_offset)
    off = np.sqrt(np.mean(((slope * flops + offset) / energy - 1.0) ** 2))
    free = 1 + has_offset
    return {
        "j_per_flop": slope,
        "offset_j": offset,
        "s_per_flop": slope_s,
        "offset_s": offset_s,
        "spread": float(off) if len(row) > free else _USUAL_SPREAD,
        "n": len(row),
    }


def _fit_line(flops: Floats, values: Floats, has_offset: bool) -> tuple[float, float]:
    """The a and c of least squares of (a·F + c)/y - 1, none of them negative."""
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


def _row_name(setup: Setup) -> str:
    return stable_hash(setup.to_dict())


def _count_flops(network: Network, setup: Setup) -> float:
    return network_work(network, setup).total.flops


def _list_layers(
    network: Network, setup: Setup, row: Json, seen: bool
) -> tuple[LayerEstimate, ...]:
    """By FLOPs; what comes on top belongs to no layer more than to another."""
    share_j = row.get("offset_j", 0.0) / len(network.layers)
    found = []
    for layer in network.layers:
        energy_j = row["j_per_flop"] * layer_work(layer, setup).total.flops + share_j
        name = layer.name or layer.kind
        found.append(LayerEstimate(name, layer.kind, energy_j, layer.calls, seen))
    return tuple(found)
