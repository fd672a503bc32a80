"""The additive estimator: the energy of a network is the sum over its isolated layers and blocks.

    F, B, n    FLOPs, bytes and kernel launches of a piece; k, l, c, a, b, v, w fitted coefficients
    duration   d = (k·F + l·B + c·n)·(1 + residual)             from every piece timed on the device
    energy     g = (a·F + b·B + v·s + w·(d - s))·(1 + residual) s: d up to a short launch each
    device     G = Σ g,  D = Σ d                                the device alone
    step       E = G + P0·(T - D)                               a step: waiting draws P0

The cost of a layer is jagged in its sizes, but given its duration its energy is smooth: energy is
measured at few sizes, duration at all sizes of the networks to estimate.

    pieces             split a network into pieces
    decompose          observations as sums over pieces
    encode, priors     pieces and observations as arrays, priors of their processes
    host_calls         durations of the host's calls
    host_time          T from the host and the device
    model_fit          fit the model of a device
    device_model       the fitted model of a device, and its predictions
    layer_energies     energy by layer
    measured_networks  networks that were measured as a whole
    imported_runs      whole runs of imported logs
    target_pieces, acquisition   what to measure next
    stored_fit         the fit as JSON
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.additive.acquisition import propose_trial
from joulecast.estimators.additive.decompose import (
    choose_sum_error_sd_share,
    decompose_observations,
    is_step,
)
from joulecast.estimators.additive.device_model import (
    AdditiveModel,
    NetworkTotals,
    predict_total_means,
    predict_totals,
)
from joulecast.estimators.additive.layer_energies import attribute_energies
from joulecast.estimators.additive.measured_networks import (
    MeasuredNetwork,
    find_measured,
    summarise_networks,
    update_prediction,
)
from joulecast.estimators.additive.model_fit import fit_model
from joulecast.estimators.additive.pieces import PlacedPiece, count_pieces, split_pieces
from joulecast.estimators.additive.stored_fit import FIT_VERSION, StoredFit
from joulecast.estimators.base import (
    FitComponent,
    Json,
    Prediction,
    Proposal,
    Target,
    equicorrelated_covariance,
)
from joulecast.gp.linalg import Floats
from joulecast.records import LayerEstimate, Network, Observation, Setup


class AdditiveEstimator:
    """Sum of isolated layers and blocks: energy from few of them, duration from many."""

    name = "additive"
    version = FIT_VERSION
    uses_anchors = False

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is a whole step with an energy or a duration."""
        return is_step(observation)

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """Return the trial that tells most about the target's networks for its device time."""
        return propose_trial(target, observations, fit_model)

    def fit(self, observations: Sequence[Observation]) -> FittedAdditive:
        """Fit the processes of duration and energy, and the model of host time."""
        model = fit_model(observations)
        stored = StoredFit.from_model(
            model,
            observation_count=sum(map(self.uses, observations)),
            sum_error_sd_share=choose_sum_error_sd_share(decompose_observations(observations)),
            measured_networks=summarise_networks(observations, model.encoder.labels),
            kind_counts=_count_kinds(model),
        )
        # Through JSON, so that a fresh fit and a stored one agree to the last digit.
        return self.load(stored.to_dict())

    def load(self, data: Json) -> FittedAdditive:
        """Restore a fit from its JSON."""
        stored = StoredFit.from_dict(data)
        return FittedAdditive(
            stored.restore_model(),
            stored.sum_error_sd_share,
            stored.measured_networks,
            stored.observation_count,
            stored.kind_counts,
        )


@dataclass(frozen=True)
class FittedAdditive:
    """A fit of the additive estimator.

    Attributes:
        model: The fitted processes.
        sum_error_sd_share: Standard deviation of a network's total around the sum of its layers, as
            a share of the total.
        measured_networks: Measurements of whole networks, by the hash of their pieces.
        kind_counts: Numbers of isolated pieces with energy and with duration, by kind.
    """

    model: AdditiveModel
    sum_error_sd_share: float
    measured_networks: Mapping[str, MeasuredNetwork]
    observation_count: int
    kind_counts: Mapping[str, Mapping[str, int]]

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Sum over the pieces of each network, with the joint covariance of what they share."""
        pieces, calls = self._split(networks, setups)
        counts = list(map(count_pieces, pieces))
        totals = predict_totals(self.model, counts, self.sum_error_sd_share, joint, calls)
        cov = totals.covariance
        if cov is not None:
            pairs = list(zip(networks, setups, strict=True))
            cov = cov + equicorrelated_covariance(pairs, self.sum_error_sd_share * totals.energy_j)
        layers: tuple[tuple[LayerEstimate, ...], ...] = ((),) * len(networks)
        if per_layer:
            layers = attribute_energies(self.model, networks, pieces, totals)
        prediction = Prediction(
            energy_j=totals.energy_j,
            energy_sd_j=np.sqrt(totals.variance if cov is None else np.diag(cov)),
            energy_cov=cov,
            duration_s=totals.duration_s,
            layers=layers,
            unseen_share=_find_unseen_shares(self.model, totals),
            device_energy_j=totals.device_energy_j,
            uncertainty_sources=_rank_sources(totals),
            duration_sd_s=np.sqrt(totals.duration_var),
        )
        measured = find_measured(self.measured_networks, pieces)
        return update_prediction(prediction, measured) if any(measured) else prediction

    def predict_means(self, networks: Sequence[Network], setups: Sequence[Setup]) -> Floats:
        """Return the mean energies of ``predict``, in half its time."""
        pieces, calls = self._split(networks, setups)
        if any(find_measured(self.measured_networks, pieces)):
            return self.predict(networks, setups).energy_j
        return predict_total_means(self.model, list(map(count_pieces, pieces)), calls)

    def describe(self) -> tuple[FitComponent, ...]:
        """Return the observed kinds, with how many pieces of each were measured in isolation."""
        return tuple(
            FitComponent(label, counts["joules"], counts["seconds"])
            for label, counts in self.kind_counts.items()
        )

    def to_dict(self) -> Json:
        """Return JSON from which ``AdditiveEstimator.load`` restores the fit."""
        return StoredFit.from_model(
            self.model,
            self.observation_count,
            self.sum_error_sd_share,
            self.measured_networks,
            self.kind_counts,
        ).to_dict()

    def _split(
        self, networks: Sequence[Network], setups: Sequence[Setup]
    ) -> tuple[list[tuple[PlacedPiece, ...]], list[float]]:
        """Return the pieces of each network, and the host's calls that are in none."""
        labels = set(self.model.encoder.labels)
        pairs = list(zip(networks, setups, strict=True))
        pieces = [split_pieces(network, setup, labels) for network, setup in pairs]
        return pieces, [_count_unattributed_calls(*pair) for pair in pairs]


def _count_unattributed_calls(network: Network, setup: Setup) -> float:
    """Return the calls between layers, in calls of forward and backward pass together."""
    if network.totals is None:
        return 0.0
    return network.totals.between * (1.0 if setup.phase == "train" else 0.5)


def _count_kinds(model: AdditiveModel) -> dict[str, dict[str, int]]:
    """Return the numbers of distinct isolated pieces with energy and with duration, by label."""
    energies, durations = (
        Counter(process.pieces[at].label for at in _list_isolated(process.fitted.data.counts))
        for process in (model.energy, model.duration)
    )
    return {
        label: {"joules": energies[label], "seconds": durations[label]}
        for label in model.encoder.labels
    }


def _list_isolated(counts: Floats) -> set[int]:
    """Return the pieces that an observation shows alone."""
    rows = np.flatnonzero(np.count_nonzero(counts, axis=1) == 1)
    return set(np.nonzero(counts[rows])[1].tolist())


def _find_unseen_shares(model: AdditiveModel, totals: NetworkTotals) -> tuple[float, ...]:
    """Return the share of each network's device energy in kinds that were never measured."""
    measured = {piece.label for piece in model.energy.pieces}
    is_unseen = np.array([piece.label not in measured for piece in totals.pieces], float)
    whole_j = np.maximum(totals.sums.total(totals.piece_energy_j), 1e-300)
    return tuple((totals.sums.total(totals.piece_energy_j * is_unseen) / whole_j).tolist())


def _rank_sources(totals: NetworkTotals) -> tuple[dict[str, float], ...]:
    """Return the sources of each network's variance with their shares, largest first."""
    shares = []
    for at, total in enumerate(totals.variance):
        sources = totals.variance_by_source
        parts = {name: float(variance[at] / total) for name, variance in sources.items()}
        shares.append(dict(sorted(parts.items(), key=lambda part: -part[1])))
    return tuple(shares)
