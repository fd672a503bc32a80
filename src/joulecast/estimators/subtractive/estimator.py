"""The method of the AMPERE paper: a layer costs what a small network with it costs, less the rest.

    E(net)         = Ê_input(C1) + Σ Ê_hidden(C_i-1, C_i) + Ê_output(C_n-1)      equation 4
    Ê_output(C)    ← E([output])
    Ê_input(C)     ← E([input, output])         - Ê_output                       equation 1
    Ê_hidden(C,C') ← E([input, hidden, output]) - Ê_input - Ê_output             equation 2

There is one Gaussian process per curve. A curve is a layer in its role and setup, with all sizes
but its widths. ``curves.py`` subtracts and fits, ``next_point.py`` proposes where to measure next,
``network_sums.py`` adds up networks, and ``rates.py`` estimates layers without a curve.
``subtractive`` deviates from the paper in many points; ``paper_options.py`` lists them, and
``ampere`` has none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from joulecast.errors import MissingError
from joulecast.estimators.additivity_error import SUBTRACTED_SUM_ERROR_SD_SHARE
from joulecast.estimators.base import (
    FitComponent,
    Fitted,
    Json,
    Prediction,
    Proposal,
    Target,
    decline_probes,
    equicorrelated_covariance,
    predict_by_setup,
    split_energy_by_bytes,
)
from joulecast.estimators.subtractive.curves import QUANTITIES, Curve, fit_curves, read_point
from joulecast.estimators.subtractive.network_sums import PartCost, sum_networks
from joulecast.estimators.subtractive.next_point import propose_point
from joulecast.estimators.subtractive.paper_options import (
    OURS,
    PAPER,
    SEPARATOR,
    SubtractiveOptions,
    change_options,
)
from joulecast.estimators.subtractive.rates import GroupRates, ProfiledPart, Rates, fit_rates
from joulecast.gp.regression import fit_gaussian_process
from joulecast.records import LayerEstimate, Network, Observation, Setup
from joulecast.variants import PlacedPart, describe_part, resize_part, width_names


class SubtractiveEstimator:
    """AMPERE: active profiling of small variants, one Gaussian process per curve."""

    name = "subtractive"
    version = 1
    uses_anchors = False
    sum_error_sd_share = SUBTRACTED_SUM_ERROR_SD_SHARE
    options = OURS

    def __init__(self, kernel: str = "matern", changes: tuple[str, ...] = ()) -> None:
        """Make the estimator.

        Args:
            kernel: Kernel of the Gaussian processes.
            changes: Deviations from the paper that are switched: see ``paper_options.py``.
        """
        self.name = SEPARATOR.join((type(self).name, *changes))
        self.options = replace(change_options(type(self).options, changes), kernel=kernel)
        self.partition = self.options.partition
        self.repeats_doubtful = self.options.repair
        self._fit_process = partial(_fit_process, options=self.options.process)

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is a variant, run as a whole eager step."""
        return any(read_point(observation, name, self.partition) for name in QUANTITIES)

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the bounds of every curve, then the point of largest variance."""
        if target.acquisition == "probe":
            return decline_probes(self.name)
        # The paper's rule knows no totals, so ``target`` means energy.
        quantity = "time" if target.acquisition == "time" else "energy"
        own = [seen for seen in observations if seen.trial.setup == target.setup]
        curves = self._fit_curves(own, quantity)
        return propose_point(target, own, curves, self.options)

    def fit(
        self, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> FittedSubtractive:
        """Fit curves of energy and duration, and rates for layers without a curve."""
        by_quantity = {name: self._fit_curves(observations, name) for name in QUANTITIES}
        if not by_quantity["energy"]:
            raise MissingError(
                "no energy of a variant was measured on this device: profile the net there first"
            )
        curves: dict[str, Json] = {}
        for quantity, found in by_quantity.items():
            for key, curve in sorted(found.items()):
                curves.setdefault(key, _describe(curve))[quantity] = curve.process.to_dict()
        rates = {name: fit_rates(_list_profiled(found)) for name, found in by_quantity.items()}
        count = sum(map(self.uses, observations))
        return FittedSubtractive(curves, rates, self.sum_error_sd_share, count, self.options)

    def load(self, data: Json) -> FittedSubtractive:
        """Restore a fit from its JSON."""
        rates = {
            quantity: {name: GroupRates.from_dict(group) for name, group in groups.items()}
            for quantity, groups in data["rates"].items()
        }
        share, count = data["off_share"], data["seen"]
        return FittedSubtractive(data["curves"], rates, share, count, self.options)

    def _fit_curves(self, observations: Sequence[Observation], quantity: str) -> dict[str, Curve]:
        return fit_curves(
            observations, quantity, self._fit_process, self.partition, self.options.carried
        )


class BlockSubtractiveEstimator(SubtractiveEstimator):
    """AMPERE with every repeated block as one layer, as the paper splits ResNets.

    It equals ``subtractive`` on networks that repeat no block.
    """

    name = "subtractive-blocks"
    options = replace(OURS, layers=False)


class PaperEstimator(SubtractiveEstimator):
    """AMPERE as the paper describes it, without the deviations of ``subtractive``."""

    name = "ampere"
    options = PAPER


@dataclass(frozen=True)
class FittedSubtractive:
    """A fit of the subtractive estimator.

    Attributes:
        curves: Gaussian processes of energy and duration of each curve, as JSON: a prediction
            needs few of many.
        rates: Rates for what no curve shows, by quantity.
        sum_error_sd_share: Standard deviation of a network's total around the sum of its layers, as
            a share of the total.
        options: How networks are split and added up.
    """

    curves: Mapping[str, Json]
    rates: Mapping[str, Rates]
    sum_error_sd_share: float
    observation_count: int
    options: SubtractiveOptions = OURS

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Sum over the layers of each network, with their joint covariance."""
        predict = partial(self._predict_setup, joint=joint, per_layer=per_layer)
        return predict_by_setup(predict, networks, setups)

    def describe(self) -> tuple[FitComponent, ...]:
        """Return the curves."""
        items = [
            FitComponent(
                curve["label"],
                len(curve["energy"]["values"]) if "energy" in curve else 0,
                len(curve["time"]["values"]) if "time" in curve else 0,
                tuple(curve["features"]),
            )
            for curve in self.curves.values()
        ]
        return tuple(sorted(items, key=lambda item: item.label))

    def to_dict(self) -> Json:
        """Return JSON from which ``SubtractiveEstimator.load`` restores the fit."""
        return {
            "seen": self.observation_count,
            "off_share": self.sum_error_sd_share,
            "curves": self.curves,
            "rates": {
                quantity: {name: group.to_dict() for name, group in groups.items()}
                for quantity, groups in self.rates.items()
            },
        }

    def _predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        split = self.options.partition.split
        parts = [split(network) for network in networks]
        energy, duration = (
            sum_networks(self.curves, self.rates[quantity], quantity, parts, setup, self.options)
            for quantity in QUANTITIES
        )
        sds_j = self.sum_error_sd_share * energy.totals
        cov = energy.cov + equicorrelated_covariance(networks, sds_j)
        return Prediction(
            energy_j=energy.totals,
            energy_sd_j=np.sqrt(np.diag(cov)),
            energy_cov=cov if joint else None,
            duration_s=duration.totals,
            layers=tuple(
                _list_layers(placed, costs, setup) if per_layer else ()
                for placed, costs in zip(parts, energy.costs, strict=True)
            ),
            unseen_share=tuple(map(_find_unseen_share, energy.costs)),
        )


# A proposal refits the one curve that has a new point, and the fit of a campaign none of energy.
_fit_process = lru_cache(maxsize=1024)(fit_gaussian_process)


def _describe(curve: Curve) -> Json:
    return {
        "role": curve.part.role,
        "kind": "+".join(layer.kind for layer in curve.part.layers),
        "label": describe_part(curve.part),
        "features": list(width_names(curve.part)),
        "setup": curve.setup.to_dict(),
        "n": len(curve.process.values),
    }


def _list_profiled(curves: Mapping[str, Curve]) -> list[ProfiledPart]:
    """Return every profiled point of every curve."""
    points = []
    for _, curve in sorted(curves.items()):
        process = curve.process
        rows = zip(process.inputs, process.values, process.variances, strict=True)
        for widths, value, variance in rows:
            part = resize_part(curve.part, [int(width) for width in widths])
            points.append(ProfiledPart(part, curve.setup, float(value), float(variance) ** 0.5))
    return points


def _list_layers(
    parts: Sequence[PlacedPart], costs: Sequence[PartCost], setup: Setup
) -> tuple[LayerEstimate, ...]:
    """Return one row per layer; layers of one part share its cost by the bytes they move."""
    return tuple(
        row
        for placed, cost in zip(parts, costs, strict=True)
        for row in split_energy_by_bytes(placed.layers, cost.value, cost.seen, setup)
    )


def _find_unseen_share(costs: Sequence[PartCost]) -> float:
    total = sum(cost.value for cost in costs)
    return sum(cost.value for cost in costs if not cost.seen) / total if total else 0.0
