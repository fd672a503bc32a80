"""The additive estimator: the energy of a network is the sum over its layers.

    F, B, n    FLOPs, bytes and launches of an operator under a setup
    duration   d = (n·t0 + F/peak + B/bandwidth)·exp(residual)          from every layer timed
    power      p = (P + Q·F/(d·peak) + R·B/(d·bandwidth))·exp(residual) from those with energy
    device     D = Σ d,  G = Σ d·p                                      the device alone
    step       E = G + P0·(T - D)                                       a step: waiting draws P0

Rates are the best that the device was seen to reach; residuals are Gaussian processes over the
sizes of layers, shared by kinds and precisions (``gp.logsums``). Repeated blocks and whole networks
are observations of sums. Given its duration the power of a layer is smooth, so energy is measured
at few sizes, duration at many: on an H200 isolated layers with time probes and two clocks had 2.0 %
on 56 held-out networks, the paper's subtraction 13.9 %.

A whole run of an imported log costs its steps and an overhead, start-up and evaluation:
E = steps·Σ g + overhead; one run is E·exp(ε), ε ~ N(0, noise²). ``predict_runs`` predicts those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from joulecast.estimators.additive.encode import SourceDevice, SourceMean
from joulecast.estimators.additive.host_time import divide_waiting_step
from joulecast.estimators.additive.layers import (
    OVERHEAD,
    PlacedLayer,
    count_layers,
    group_alike,
    make_overhead,
    split_layers,
)
from joulecast.estimators.additive.observations import (
    MeasuredKind,
    add_kinds,
    choose_sum_error_sd_share,
    decompose_observations,
    is_step,
    split_phases,
    summarise_kinds,
)
from joulecast.estimators.additive.predict import (
    AdditiveModel,
    NetworkTotals,
    Posteriors,
    attribute_energies,
    condition_for,
    predict_totals,
)
from joulecast.estimators.base import (
    READ_MODULE_SUM_ERROR_SD_SHARE,
    FitComponent,
    Fitted,
    Json,
    Prediction,
    Proposal,
    Target,
    equicorrelated_covariance,
    predict_groups,
)
from joulecast.gp.linalg import Floats, Ints
from joulecast.gp.logsums.stored import PackedArray
from joulecast.records import DataSheet, LayerEstimate, Network, Observation, Setup
from joulecast.records.codec import Record, not_stored, omit_default
from joulecast.system.errors import MissingError

if TYPE_CHECKING:
    from joulecast.estimators.additive.fit import SharedModel

# Hyper-parameters are fitted again when there are this many times as many observations.
_REFIT_FACTOR = 1.5
# And when more than this share of the old ones was dropped.
_DROPPED_SHARE = 0.01
# Sizes beyond the largest measured ones, and shares of the energy, that are worth a note.
_MIN_FACTOR, _MIN_SHARE = 2.0, 0.05


# Version of the stored fit; other versions are fitted again.
FIT_VERSION = 9


@dataclass(frozen=True)
class AdditiveEstimator:
    """Sum over layers: energy from few of them, duration from many.

    Attributes:
        sources: Other devices to start from; where there are none, those of an earlier fit stay.
        data_sheet: The data sheet to start from, where little or nothing was measured.
    """

    sources: tuple[SourceDevice, ...] = ()
    data_sheet: DataSheet | None = None

    name = "additive"
    version = FIT_VERSION
    uses_anchors = True

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is a whole step with an energy or a duration."""
        return is_step(observation)

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the trial that tells most about the target's networks for its device time."""
        from joulecast.estimators.additive.acquisition import propose_trial

        return propose_trial(target, observations, self.fit, fitted)

    def fit(
        self, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> FittedAdditive:
        """Fit the processes of duration and power, and the model of host time.

        Hyper-parameters of an earlier fit are kept, and the model is conditioned on the further
        observations, until there are half as many again. Where many inferences were measured, they
        have a model of their own: what they cost beyond the roofline has little to do with what
        training steps cost, and each would disturb the other.
        """
        if self.data_sheet is not None:
            return start_from_sheet(self.data_sheet, observations)
        earlier = fitted if isinstance(fitted, FittedAdditive) else None
        training, inference = split_phases(observations)
        if not inference:
            is_joint = earlier is None or earlier.inference is None
            return self._fit_phase(observations, earlier if is_joint else None)
        known = earlier and replace(earlier, inference=None)
        main = self._fit_phase(training, known)
        own = AdditiveEstimator()._fit_phase(inference, earlier and earlier.inference)
        if earlier is not None and main is known and own is earlier.inference:
            return earlier
        return replace(main, inference=own)

    def _fit_phase(
        self, observations: Sequence[Observation], earlier: FittedAdditive | None
    ) -> FittedAdditive:
        """Return one model of all observations; an earlier one is extended if it can be."""
        from joulecast.estimators.additive.fit import fit_model, identify_observations

        identities = identify_observations(observations)
        sources = self.sources or (earlier.sources if earlier is not None else ())
        if earlier is not None and earlier.sources == sources:
            if np.array_equal(identities, earlier.known):
                return earlier
            # A new observation may contradict old ones, which are then dropped. Of a large profile,
            # a few that stay in the fit do less harm than minutes of fitting it again.
            dropped = np.count_nonzero(~np.isin(earlier.known, identities))
            has_most = dropped <= _DROPPED_SHARE * len(earlier.known)
            if has_most and len(identities) < _REFIT_FACTOR * earlier.fitted_count:
                return _extend(earlier, observations, identities)
        decomposed = decompose_observations(observations)
        return FittedAdditive(
            **vars(fit_model(observations, sources)),
            fitted_count=len(identities),
            identities=PackedArray.pack(identities),
            measured_kinds=summarise_kinds(decomposed),
        )

    def load(self, data: Json) -> FittedAdditive:
        """Restore a fit from its JSON."""
        fitted = FittedAdditive.from_dict(data)
        # Damaged numbers are noticed now, not when the fit is extended.
        assert fitted.known is not None
        return fitted


@dataclass(frozen=True)
class FittedAdditive(AdditiveModel, Record):
    """A fit of the additive estimator: the model of a device, and what it was fitted to.

    Attributes:
        fitted_count: Number of observations that hyper-parameters were fitted to.
        inference: The fit to inferences, where these have one of their own.
        posteriors: Given what matters for the networks it was narrowed to; None for any network.
    """

    fitted_count: int
    identities: PackedArray
    measured_kinds: Mapping[str, MeasuredKind]
    inference: FittedAdditive | None = omit_default(None)
    version: int = FIT_VERSION
    posteriors: Posteriors | None = not_stored(None)

    def for_phase(self, phase: str) -> FittedAdditive:
        """Return the fit that predicts ``train`` or ``inference``."""
        return self.inference if self.inference is not None and phase == "inference" else self

    @cached_property
    def known(self) -> Ints:
        """Identities of all observations that the model is conditioned on."""
        known: Ints = self.identities.unpack()
        return known

    @property
    def sources(self) -> tuple[SourceDevice, ...]:
        """Other devices that it started from."""
        return self.encoder.sources

    @property
    def observation_count(self) -> int:
        """Number of observations it was fitted to."""
        own = len(self.known)
        return own if self.inference is None else own + self.inference.observation_count

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Sum over the layers of each network, with the joint covariance of what they share."""
        if self.inference is not None and {setup.phase for setup in setups} != {"train"}:
            # Training steps and inferences have their own fits, as if they shared no errors.
            places: dict[str, list[int]] = {}
            for at, setup in enumerate(setups):
                places.setdefault(setup.phase, []).append(at)

            def predict_phase(group: Sequence[int]) -> Prediction:
                fit = replace(self.for_phase(setups[group[0]].phase), inference=None)
                own = [networks[at] for at in group], [setups[at] for at in group]
                return fit.predict(*own, joint=joint, per_layer=per_layer)

            return predict_groups(predict_phase, list(places.values()))
        layers = [split_layers(*pair) for pair in zip(networks, setups, strict=True)]
        together = joint or len(layers) < 2
        groups = [list(range(len(layers)))] if together else group_alike(layers)
        cases = list(zip(networks, setups, layers, strict=True))
        return predict_groups(partial(self._predict_together, cases, joint, per_layer), groups)

    def _predict_together(
        self,
        cases: Sequence[tuple[Network, Setup, tuple[PlacedLayer, ...]]],
        joint: bool,
        per_layer: bool,
        group: Sequence[int],
    ) -> Prediction:
        networks, setups, layers = zip(*(cases[at] for at in group), strict=True)
        # A user's own module may do work that no layer shows.
        own = self.sum_error_sd_share
        read = max(own, READ_MODULE_SUM_ERROR_SD_SHARE)
        sum_errors = np.array([own if one.totals is None else read for one in networks])
        # Views and masks that a module calls between its layers are in none of them.
        between = [0.0 if one.totals is None else float(one.totals.between) for one in networks]
        waiting = list(map(divide_waiting_step, networks, setups))
        counts = list(map(count_layers, layers))
        totals = predict_totals(
            self, counts, sum_errors, joint, setups, between, waiting, self.posteriors
        )
        variance, cov = totals.variance, totals.covariance
        if cov is not None:
            pairs = list(zip(networks, setups, strict=True))
            cov = cov + equicorrelated_covariance(pairs, sum_errors * totals.energy_j)
        shares = [
            {name: float(part[at] / total) for name, part in totals.variance_by_source.items()}
            for at, total in enumerate(variance)
        ]
        rows: tuple[tuple[LayerEstimate, ...], ...] = ((),) * len(networks)
        notes: tuple[tuple[str, ...], ...] = ()
        if per_layer:
            rows = attribute_energies(networks, layers, totals, self.measured_kinds)
            start = []
            if self.encoder.sources:
                names = " and ".join(source.name for source in self.encoder.sources)
                start.append(
                    f"Transferred from {names}: what was learnt there counts where the "
                    f"{self.observation_count} observations of this device say little."
                )
            if self.encoder.hardware is not None:
                from joulecast.estimators.additive.fit import note_sheet

                start.append(note_sheet(self.observation_count))
            extrapolated = note_extrapolation(self.measured_kinds, totals)
            notes = tuple((*start, *found) for found in extrapolated)
        return Prediction(
            energy_j=totals.energy_j,
            energy_sd_j=np.sqrt(variance if cov is None else np.diag(cov)),
            energy_cov=cov,
            duration_s=totals.duration_s,
            layers=rows,
            unseen_share=find_unseen_shares(self.measured_kinds, totals),
            device_energy_j=totals.device_energy_j,
            uncertainty_sources=tuple(
                dict(sorted(one.items(), key=lambda item: -item[1])) for one in shares
            ),
            duration_sd_s=np.sqrt(totals.duration_var),
            notes=notes,
        )

    def narrow(self, networks: Sequence[Network], setup: Setup) -> FittedAdditive:
        """Return the fit for many networks like these, which is conditioned only once."""
        own = self.for_phase(setup.phase)
        counts = [count_layers(split_layers(network, setup)) for network in networks]
        return replace(own, inference=None, posteriors=condition_for(own, counts))

    def for_any_unit(self) -> FittedAdditive:
        """Return the fit for a unit of the device of which nothing was measured."""
        inference = self.inference.for_any_unit() if self.inference is not None else None
        host_time = self.host_time.for_any_host()
        return replace(self, unit="", host_time=host_time, inference=inference)

    def describe(self) -> tuple[FitComponent, ...]:
        """Return the observed kinds, with how many layers of each were measured in isolation."""
        own = tuple(
            FitComponent(label, kind.energy_points, kind.duration_points)
            for label, kind in self.measured_kinds.items()
        )
        return own if self.inference is None else own + self.inference.describe()

    def as_source(self, name: str, profile: str) -> SourceDevice:
        """Return what other devices can start from."""
        means = SourceMean.from_fitted(self.duration), SourceMean.from_fitted(self.power)
        return SourceDevice(name, profile, self.encoder, *means)


def start_from_sheet(
    sheet: DataSheet,
    observations: Sequence[Observation] = (),
    shared: SharedModel | None = None,
) -> FittedAdditive:
    """Return the fit of a device of which the data sheet is known, and perhaps a little more."""
    from joulecast.estimators.additive.fit import identify_observations, load_shared_model

    known = load_shared_model() if shared is None else shared
    start = FittedAdditive(
        **vars(known.start_model(sheet)),
        fitted_count=0,
        identities=PackedArray.pack(np.zeros(0, np.int64)),
        measured_kinds=known.measured_kinds,
    )
    identities = identify_observations(observations)
    return _extend(start, observations, identities) if len(identities) else start


def _extend(
    earlier: FittedAdditive, observations: Sequence[Observation], identities: Ints
) -> FittedAdditive:
    """Return a fit conditioned on all observations, of which only further ones are decomposed."""
    from joulecast.estimators.additive.fit import select_new, update_model

    new = select_new(observations, earlier.known)
    decomposed = decompose_observations(new)
    sum_error, is_shared = earlier.sum_error_sd_share, earlier.encoder.hardware is not None
    if earlier.mode != "graph":
        sum_error = max(sum_error, choose_sum_error_sd_share(decomposed))
    return replace(
        update_model(earlier, observations, earlier.known),
        identities=PackedArray.pack(identities),
        sum_error_sd_share=sum_error,
        measured_kinds=add_kinds(earlier.measured_kinds, summarise_kinds(decomposed, is_shared)),
    )


@dataclass(frozen=True)
class RunTotals:
    """Energy and duration of a whole run of each of n networks.

    Attributes:
        energy_j: Mean energy over many runs.
        energy_sd_j: Standard deviation of this mean.
        repeat_sd_share: Relative standard deviation of one run around the mean.
    """

    energy_j: Floats
    energy_sd_j: Floats
    duration_s: Floats
    repeat_sd_share: float

    def variance(self, repeats: float | Floats = 1.0) -> Floats:
        """Return the variance of the mean over this many runs, in joules squared."""
        return np.asarray(
            self.energy_sd_j**2 + (self.repeat_sd_share * self.energy_j) ** 2 / repeats
        )


def predict_runs(
    fitted: FittedAdditive, networks: Sequence[Network], setup: Setup, steps: int, source: str
) -> RunTotals:
    """Predict runs of this many steps, as the source of imported runs reports them.

    Raises:
        MissingError: The fit contains no run from that source.
    """
    overhead = make_overhead(source)
    if overhead.kind not in fitted.encoder.overheads:
        raise MissingError(
            f"the fit contains no run from {source!r}: import some of its runs first"
        )
    counts = [
        {**count_layers(split_layers(network, setup)), overhead: 1.0 / steps}
        for network in networks
    ]
    totals = predict_totals(fitted, counts, fitted.sum_error_sd_share)
    noise_var = fitted.power.prior.noise_sd**2 + fitted.duration.prior.noise_sd**2
    return RunTotals(
        steps * totals.energy_j,
        steps * np.sqrt(totals.variance),
        steps * totals.duration_s,
        float(np.sqrt(noise_var)),
    )


def find_unseen_shares(
    measured: Mapping[str, MeasuredKind], totals: NetworkTotals
) -> tuple[float, ...]:
    """Return the share of each network's energy in labels that were never measured."""
    sums, operator_j = totals.sums, totals.operator_j
    is_unseen = np.array([one.label not in measured for one in sums.operators], float)
    unseen_j = sums.counts.total(operator_j * is_unseen)
    return tuple((unseen_j / sums.counts.total(operator_j)).tolist())


def note_extrapolation(
    measured: Mapping[str, MeasuredKind], totals: NetworkTotals
) -> tuple[tuple[str, ...], ...]:
    """Return for each network how far it reaches beyond measured sizes, and into unseen kinds."""
    operators, counts, operator_j = totals.sums.operators, totals.sums.counts, totals.operator_j
    # How many times larger each operator is than the largest measured one of its label.
    factors = []
    for one in operators:
        known = measured.get(one.label)
        if known is None:
            factors.append(1.0 if one.operator_class == OVERHEAD else np.inf)
        else:
            by_flops = one.flops / known.largest_flops if known.largest_flops else 1.0
            factors.append(max(by_flops, one.size_bytes / max(known.largest_bytes, 1.0)))
    shares = counts.weight * operator_j[counts.column] / counts.total(operator_j)[counts.row]
    found = []
    for row in range(counts.size):
        own = counts.row == row
        by_label: dict[str, float] = {}
        largest: dict[str, float] = {}
        for at, share in zip(counts.column[own].tolist(), shares[own].tolist(), strict=True):
            if factors[at] >= _MIN_FACTOR:
                label = operators[at].label
                by_label[label] = by_label.get(label, 0.0) + share
                largest[label] = max(largest.get(label, 0.0), factors[at])
        found.append(
            tuple(
                f"{label} was never measured: estimated from similar operators"
                if np.isinf(largest[label])
                else f"extrapolated {largest[label]:.0f}x beyond the largest measured {label}"
                for label, share in sorted(by_label.items(), key=lambda item: -item[1])
                if share >= _MIN_SHARE
            )
        )
    return tuple(found)
