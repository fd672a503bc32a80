"""NeuralPower (Cai et al., ACML 2017), carried over from inference to training steps.

    E(net) = Σ_layers Σ_stages P̂(sizes) · T̂(sizes)       stages: forward, backward, update

NeuralPower runs each layer alone, fits sparse polynomials for its runtime and its power, one pair
for each type of layer, and sums energies over layers. Degrees, logarithms in the power, ten folds
and a least runtime are its authors' own (regressions.py, polynomials.py). For training the stages
are profiled apart and summed too, as the AMPERE paper does for its comparison (stages.py).

Where the method leaves a choice, what serves it best in simulated worlds that no benchmark shows:

- A type is an operator with what is fused behind it, in its role: first layers need no gradient of
  their input, last ones end in the loss. Frames (kernel, stride, places) are sizes like others.
- A layer runs alone, in several copies side by side like everything that runs alone here, so that
  the host's start of a step is shared. With a single copy every stage of every layer would pay it:
  in those worlds the stages of a transformer then add up to 35 % more than its step, not 8 %, of an
  LSTM to 18 %, not 4 %; convolutions do not care.
- Terms are chosen by the Lasso, then fitted without its shrinkage, by relative squares.
- Sizes fill the range below the layers of the target, instead of that of famous nets (draws.py).

What stages run apart cannot show remains: data that one leaves in the cache for the next, and host
and device that wait for each other in a stage but not in the step. The AMPERE paper found that it
overestimates; with the few sizes that a minute buys on a fast GPU it came out too low here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

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
from joulecast.estimators.baselines.regressions import fit_regression
from joulecast.estimators.baselines.stage_costs import ANY, Cost, cost_stages, fit_guesses
from joulecast.estimators.baselines.stage_sampling import choose_stage
from joulecast.estimators.baselines.stages import SeenStage, Stage, list_stages, read_stage
from joulecast.kinds import layer_work
from joulecast.records import LayerEstimate, Network, Observation, Setup
from joulecast.variants import PlacedPart, split_network

Json = dict[str, Any]

# How far a sum may be off although each of its stages is known. A stated prior, chosen like the
# rest in simulated worlds that no benchmark shows.
OFF_SHARE = 0.1


class NeuralPowerEstimator:
    """Sparse polynomials for power and runtime, a pair for each kind of layer and stage."""

    name = "neuralpower"
    version = 1

    def uses(self, observation: Observation) -> bool:
        """Eager stages of single layers, with energy and time."""
        return _read_costs(observation) is not None

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """Every kind at sizes that fill its range, stage by stage."""
        if target.acquisition == "probe":
            return without_probes(self.name)
        return choose_stage(target, observations)

    def fit(self, observations: Sequence[Observation]) -> FittedNeuralPower:
        """Fit polynomials of every kind, and rates for what has none."""
        points = [point for seen in observations if (point := _read_costs(seen))]
        if not points:
            raise MissingError(
                "no stage of a layer alone was observed with its energy yet: profile the net on "
                "this device with the estimator neuralpower first"
            )
        kinds: dict[str, list[SeenStage]] = {}
        for point in points:
            kinds.setdefault(point.stage.kind, []).append(point)
        regressions = {key: fit_regression(row).to_dict() for key, row in sorted(kinds.items())}
        return FittedNeuralPower(regressions, fit_guesses(points), OFF_SHARE, len(points))

    def load(self, data: Json) -> FittedNeuralPower:
        """Restore a fit from its JSON."""
        return FittedNeuralPower(data["kinds"], data["guesses"], data["off_share"], data["seen"])


@dataclass(frozen=True)
class FittedNeuralPower:
    """A fit of NeuralPower.

    Attributes:
        regressions: Polynomials of power and runtime by kind of stage, as JSON.
        guesses: Rates per FLOP, byte and launch for kinds without a regression, by setup.
        sum_error_share: Standard deviation of a network's total around the sum of its stages, as a
            share of the total.
    """

    regressions: dict[str, Json]
    guesses: dict[str, Json]
    sum_error_share: float
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

    def _predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        nets = [list(_count_stages(network, setup)) for network in networks]
        stages = (stage for net in nets for _, stage, _ in net)
        costs = cost_stages(self.regressions, self.guesses, stages)
        bills = [[_Row(*count, costs[count[1]]) for count in net] for net in nets]
        sds_j = np.array([_find_doubt(rows, self.sum_error_share) for rows in bills])
        return Prediction(
            energy_j=np.array([sum(row.energy_j for row in rows) for rows in bills]),
            energy_sd_j=sds_j,
            energy_cov=half_shared_covariance(networks, sds_j) if joint else None,
            duration_s=np.array([sum(row.duration_s for row in rows) for rows in bills]),
            layers=tuple(_list_layers(rows, setup) if per_layer else () for rows in bills),
            unseen_share=tuple(_share_unseen(rows) for rows in bills),
        )

    def describe(self) -> tuple[FittedItem, ...]:
        """Return nothing: kinds of stages have no names that a person would know."""
        return ()

    def to_dict(self) -> Json:
        """Return JSON from which ``NeuralPowerEstimator.load`` restores the fit."""
        return {
            "seen": self.observation_count,
            "off_share": self.sum_error_share,
            "kinds": self.regressions,
            "guesses": self.guesses,
        }


@dataclass(frozen=True)
class _Row:
    """A stage of a layer in a network, how often a step counts it, and what it costs once."""

    place: PlacedPart
    stage: Stage
    times: int
    cost: Cost

    @property
    def energy_j(self) -> float:
        return self.times * self.cost.energy_j

    @property
    def duration_s(self) -> float:
        return self.times * self.cost.duration_s


def _read_costs(observation: Observation) -> SeenStage | None:
    seen = read_stage(observation)
    return seen if seen and seen.energy_j and seen.duration_s else None


def _count_stages(network: Network, setup: Setup) -> Iterator[tuple[PlacedPart, Stage, int]]:
    """How often a step runs each stage; weights are updated once, where they belong."""
    for place in split_network(network):
        updates = 0 if any(layer.tied for layer in place.layers) else 1
        for stage in list_stages(place.part, setup):
            yield place, stage, updates if stage.name == "update" else place.calls


def _find_doubt(rows: Sequence[_Row], off_share: float) -> float:
    """Layers of one kind err together, kinds by themselves, and the sum as a whole."""
    doubts = {"": off_share * sum(row.energy_j for row in rows)}
    for row in rows:
        # Guesses of all kinds come from the same rates.
        kind = row.stage.kind if row.cost.known else ANY
        doubts[kind] = doubts.get(kind, 0.0) + row.energy_j * row.cost.spread
    return math.hypot(*doubts.values())


def _share_unseen(rows: Sequence[_Row]) -> float:
    total = sum(row.energy_j for row in rows)
    return sum(row.energy_j for row in rows if not row.cost.seen) / total if total else 0.0


def _list_layers(rows: Sequence[_Row], setup: Setup) -> tuple[LayerEstimate, ...]:
    """One line per layer; layers that are one part share its cost by the bytes they move."""
    lines = []
    for place, found in itertools.groupby(rows, key=lambda row: row.place):
        stages = list(found)
        energy_j, seen = sum(row.energy_j for row in stages), all(row.cost.seen for row in stages)
        moved = [layer_work(layer, setup).total.size_bytes for layer in place.layers]
        for layer, size in zip(place.layers, moved, strict=True):
            share = size / sum(moved) if sum(moved) else 1.0 / len(moved)
            name = layer.name or layer.kind
            lines.append(LayerEstimate(name, layer.kind, energy_j * share, layer.calls, seen))
    return tuple(lines)
