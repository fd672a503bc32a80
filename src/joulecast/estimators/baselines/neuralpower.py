"""NeuralPower (Cai et al., ACML 2017), carried over from inference to training steps.

    E(net) = Σ_layers Σ_stages P̂(sizes) · T̂(sizes)       stages: forward, backward, update

NeuralPower runs each layer in isolation, fits sparse polynomials for its runtime and its power, one
pair for each type of layer, and sums energies over layers. Degrees, logarithms in the power, ten
folds and a minimal runtime are its authors' choices (``regressions.py``, ``polynomials.py``). For
training, the stages are profiled separately and summed too, as the AMPERE paper does in its
comparison (``stages.py``).

Where the method leaves a choice, it was made in its favour on simulated devices outside all
benchmarks:

- A type is an operator with its tail, in its role: first layers need no gradient of their input,
  last ones end in the loss. Kernel, stride and positions are sizes like others.
- A layer runs in several copies side by side, like all isolated layers here, so that they share the
  host's start of a step. With one copy each stage of each layer would pay for it: the stages of a
  transformer then sum to 35 % more than its step instead of 8 %, those of an LSTM to 18 % instead
  of 4 %; convolutions do not change.
- Terms are chosen by the Lasso, then fitted without its shrinkage, by relative squares.
- Sizes fill the range below the layers of the target instead of that of well-known networks
  (``stage_sampling.py``).

Stages run separately cannot show data that one stage leaves in the cache for the next, nor host and
device waiting for each other in a stage but not in the step. The AMPERE paper found that
NeuralPower overestimates; here, with the few sizes that fit into a minute on a fast GPU, it
underestimated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from joulecast.errors import MissingError
from joulecast.estimators.base import (
    POLYNOMIAL_SUM_ERROR_SD_SHARE,
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
from joulecast.estimators.baselines.regressions import StageRegression, fit_regression
from joulecast.estimators.baselines.stage_costs import (
    StageCost,
    StageRates,
    fit_stage_rates,
    predict_stages,
)
from joulecast.estimators.baselines.stage_sampling import propose_stage
from joulecast.estimators.baselines.stages import (
    LayerStage,
    ObservedStage,
    list_stages,
    read_stage,
)
from joulecast.records import LayerEstimate, Network, Observation, Setup
from joulecast.variants import PlacedPart, split_network


class NeuralPowerEstimator:
    """Sparse polynomials for power and runtime, one pair for each type of layer and stage."""

    name = "neuralpower"
    version = 1
    uses_anchors = False
    sum_error_sd_share = POLYNOMIAL_SUM_ERROR_SD_SHARE

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is an eager stage of a layer, with energy and duration."""
        return _read_measured(observation) is not None

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return every type of layer at sizes that fill its range, stage by stage."""
        if target.acquisition == "probe":
            return decline_probes(self.name)
        return propose_stage(target, observations)

    def fit(
        self, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> FittedNeuralPower:
        """Fit polynomials for every type, and rates for what has none."""
        points = [point for seen in observations if (point := _read_measured(seen))]
        if not points:
            raise MissingError(
                "no stage of an isolated layer was measured with its energy on this device: "
                "profile the net there with the estimator neuralpower first"
            )
        types: dict[str, list[ObservedStage]] = {}
        for point in points:
            types.setdefault(point.stage.type_key, []).append(point)
        regressions = {key: fit_regression(group) for key, group in sorted(types.items())}
        rates = fit_stage_rates(points)
        return FittedNeuralPower(regressions, rates, self.sum_error_sd_share, len(points))

    def load(self, data: Json) -> FittedNeuralPower:
        """Restore a fit from its JSON."""
        return FittedNeuralPower(
            {key: StageRegression.from_dict(one) for key, one in data["kinds"].items()},
            {key: StageRates.from_dict(one) for key, one in data["guesses"].items()},
            data["off_share"],
            data["seen"],
        )


@dataclass(frozen=True)
class FittedNeuralPower:
    """A fit of NeuralPower.

    Attributes:
        regressions: Polynomials of power and runtime by stage type.
        rates: Rates per FLOP, byte and launch for types without a regression, by setup.
        sum_error_sd_share: Standard deviation of a network's total around the sum of its stages, as
            a share of the total.
    """

    regressions: Mapping[str, StageRegression]
    rates: Mapping[str, StageRates]
    sum_error_sd_share: float
    observation_count: int

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Sum over the stages of all layers."""
        predict = partial(self._predict_setup, joint=joint, per_layer=per_layer)
        return predict_by_setup(predict, networks, setups)

    def describe(self) -> tuple[FitComponent, ...]:
        """Return the stage types."""
        items = [FitComponent(one.label, one.count, one.count) for one in self.regressions.values()]
        return tuple(sorted(items, key=lambda item: item.label))

    def to_dict(self) -> Json:
        """Return JSON from which ``NeuralPowerEstimator.load`` restores the fit."""
        return {
            "seen": self.observation_count,
            "off_share": self.sum_error_sd_share,
            "kinds": {key: one.to_dict() for key, one in self.regressions.items()},
            "guesses": {key: one.to_dict() for key, one in self.rates.items()},
        }

    def _predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        counted = [list(_count_stages(network, setup)) for network in networks]
        stages = (stage for rows in counted for _, stage, _ in rows)
        costs = predict_stages(self.regressions, self.rates, stages)
        networks_rows = [
            [_CountedStage(placed, stage, count, costs[stage]) for placed, stage, count in rows]
            for rows in counted
        ]
        sds_j = np.array([_find_sd(rows, self.sum_error_sd_share) for rows in networks_rows])
        return Prediction(
            energy_j=np.array([sum(row.energy_j for row in rows) for rows in networks_rows]),
            energy_sd_j=sds_j,
            energy_cov=equicorrelated_covariance(networks, sds_j) if joint else None,
            duration_s=np.array([sum(row.duration_s for row in rows) for rows in networks_rows]),
            layers=tuple(_list_layers(rows, setup) if per_layer else () for rows in networks_rows),
            unseen_share=tuple(map(_find_unseen_share, networks_rows)),
        )


@dataclass(frozen=True)
class _CountedStage:
    """A stage of a layer in a network, how often a step runs it, and its cost per run."""

    placed: PlacedPart
    stage: LayerStage
    count: int
    cost: StageCost

    @property
    def energy_j(self) -> float:
        return self.count * self.cost.energy_j

    @property
    def duration_s(self) -> float:
        return self.count * self.cost.duration_s


def _read_measured(observation: Observation) -> ObservedStage | None:
    seen = read_stage(observation)
    return seen if seen and seen.energy_j and seen.duration_s else None


def _count_stages(network: Network, setup: Setup) -> Iterator[tuple[PlacedPart, LayerStage, int]]:
    """Yield how often a step runs each stage; weights are updated once, by their first layer."""
    for placed in split_network(network):
        updates = 0 if any(layer.tied for layer in placed.layers) else 1
        for stage in list_stages(placed.part, setup):
            yield placed, stage, updates if stage.name == "update" else placed.calls


def _find_sd(rows: Sequence[_CountedStage], sum_error_sd_share: float) -> float:
    """Return the standard deviation of a total: errors are common within a type, else independent.

    All estimates from rates count as one type.
    """
    sds_j = {"total": sum_error_sd_share * sum(row.energy_j for row in rows)}
    for row in rows:
        key = row.stage.type_key if row.cost.has_regression else "rates"
        sds_j[key] = sds_j.get(key, 0.0) + row.energy_j * row.cost.sd_share
    return math.hypot(*sds_j.values())


def _find_unseen_share(rows: Sequence[_CountedStage]) -> float:
    total_j = sum(row.energy_j for row in rows)
    return sum(row.energy_j for row in rows if not row.cost.seen) / total_j if total_j else 0.0


def _list_layers(rows: Sequence[_CountedStage], setup: Setup) -> tuple[LayerEstimate, ...]:
    """Return one row per layer; layers of one part share its cost by the bytes they move."""
    layers: list[LayerEstimate] = []
    for placed, group in itertools.groupby(rows, key=lambda row: row.placed):
        stages = list(group)
        energy_j, seen = sum(row.energy_j for row in stages), all(row.cost.seen for row in stages)
        layers += split_energy_by_bytes(placed.layers, energy_j, seen, setup)
    return tuple(layers)
