"""The baseline that everybody uses: joules in proportion to FLOPs.

    E = a·F,  T = b·F      a and b of least relative error over all observations of a Setup

It learns from anything that has energy and FLOPs, whole nets and variants alike, and proposes
nothing. Its interval is as wide as it was wrong on what it learnt from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import MissingError
from joulecast.estimators.base import Prediction, Proposal, Target, share_doubt
from joulecast.estimators.curves import is_plain_step
from joulecast.kinds import layer_work, network_work
from joulecast.records import LayerEstimate, Network, Observation, Setup, Trial, stable_hash

Json = dict[str, Any]
Floats = NDArray[np.float64]

# Nobody knows how wrong a factor from one observation is; the paper found about 40 %.
_USUAL_SPREAD = 0.4
ANY = "*"


class FlopsEstimator:
    """FLOPs-proportional, one factor for each Setup."""

    name = "flops"

    def uses(self, observation: Observation) -> bool:
        """Whole eager steps with energy and FLOPs."""
        flops = _count_flops(observation.trial.network, observation.trial.setup)
        plain = is_plain_step(observation.trial.how)
        return bool(plain and observation.energy_j and observation.duration_s and flops)

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """Nothing: one factor needs no guidance."""
        return Proposal(None, 0.0, "a factor is fitted to whatever was measured")

    def list_probes(self, target: Target, observations: Sequence[Observation]) -> tuple[Trial, ...]:
        """None: time tells it nothing."""
        return ()

    def fit(self, observations: Sequence[Observation]) -> Json:
        """Joules and seconds per FLOP, for each Setup and for all."""
        used = [seen for seen in observations if self.uses(seen)]
        if not used:
            raise MissingError(
                "nothing with energy and FLOPs was observed yet: measure a net first"
            )
        rows: dict[str, list[Observation]] = {ANY: used}
        for seen in used:
            rows.setdefault(_row_name(seen.trial.setup), []).append(seen)
        fits = {name: _fit_row(row) for name, row in sorted(rows.items())}
        return {"seen": len(used), "rows": fits}

    def predict(
        self, fitted: Json, networks: Sequence[Network], setup: Setup, joint: bool = True
    ) -> Prediction:
        """A factor times FLOPs; half of what it is wrong by, all networks share."""
        name = _row_name(setup)
        seen = name in fitted["rows"]
        row = fitted["rows"][name if seen else ANY]
        flops = np.array([_count_flops(network, setup) for network in networks])
        energy = row["j_per_flop"] * flops
        doubt = row["spread"] * energy
        return Prediction(
            energy_j=energy,
            energy_sd_j=doubt,
            energy_cov=share_doubt(networks, doubt) if joint else None,
            duration_s=row["s_per_flop"] * flops,
            layers=tuple(_list_layers(network, setup, row, seen) for network in networks),
            unseen_share=(0.0 if seen else 1.0,) * len(networks),
        )


def _fit_row(row: Sequence[Observation]) -> Json:
    flops = np.array([_count_flops(seen.trial.network, seen.trial.setup) for seen in row])
    energy = np.array([(seen.energy_j or 0.0) / seen.trial.how.steps for seen in row])
    time = np.array([(seen.duration_s or 0.0) / seen.trial.how.steps for seen in row])
    factor = _fit_factor(flops / energy)
    off = np.sqrt(np.mean((factor * flops / energy - 1.0) ** 2))
    return {
        "j_per_flop": factor,
        "s_per_flop": _fit_factor(flops / time),
        "spread": float(off) if len(row) > 1 else _USUAL_SPREAD,
        "n": len(row),
    }


def _fit_factor(ratios: Floats) -> float:
    """The a of least squares of a·r - 1; sorted, so that order leaves no trace."""
    r = np.sort(ratios)
    return float(r.sum() / (r @ r))


def _row_name(setup: Setup) -> str:
    return stable_hash(setup.to_dict())


def _count_flops(network: Network, setup: Setup) -> float:
    return network_work(network, setup).total.flops


def _list_layers(
    network: Network, setup: Setup, row: Json, seen: bool
) -> tuple[LayerEstimate, ...]:
    flops: Iterable[float] = (layer_work(layer, setup).total.flops for layer in network.layers)
    return tuple(
        LayerEstimate(
            layer.name or layer.kind, layer.kind, row["j_per_flop"] * f, layer.calls, seen
        )
        for layer, f in zip(network.layers, flops, strict=True)
    )
