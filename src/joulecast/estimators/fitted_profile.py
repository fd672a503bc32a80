"""Estimate networks from a profile: fit an estimator to it once, then use the fit repeatedly.

Work that layers do not count makes an estimate uncertain:

    u    share of a step's work that belongs to no layer, or that no cost rule counts
    E    energy of the step, whose relative variance grows by u²

Observations of such networks get the same variance when an estimator learns from them. Estimates of
several networks have the joint distribution of their errors:

    A, B          energies of two networks with means a, b
    ln A, ln B    jointly normal,  cov(ln A, ln B) = ln(1 + cov(A, B) / (a b))

Probabilities are log-normal, like the intervals, and all of them follow from this one covariance.
Two networks on one device share most of their errors, so their difference and ratio are known far
better than either energy. Equal queries are evaluated once: their estimates and draws are equal to
the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import numpy as np

from joulecast.estimators.base import (
    UNIT_SD_SHARE,
    Estimator,
    Fitted,
    Floats,
    Prediction,
)
from joulecast.estimators.measured import (
    UNIT_VARIATION,
    KnownStep,
    answer_measured,
    combine_steps,
)
from joulecast.gp import lognormal
from joulecast.gp.lognormal import lognormal_interval
from joulecast.operators import peak_memory
from joulecast.records import (
    DATASHEET,
    FLOAT_PRECISIONS,
    BlockEstimate,
    DataSheet,
    Device,
    Estimate,
    LayerEstimate,
    LazyObservations,
    Network,
    Profile,
    Setup,
    find_equal_blocks,
    find_steps,
    list_reading_notes,
    summarise_observations,
    weakest_provenance,
)
from joulecast.system.errors import InputError, MissingError
from joulecast.system.units import format_bytes, format_share


@dataclass(frozen=True)
class FittedProfile:
    """A profile and an estimator fitted to it, made by ``fit_profile``.

    Attributes:
        data_sheet: The data sheet that the fit started from; None if it needed none.
        answers_measured: Whether a step that was measured is answered with its measurement.
    """

    profile: Profile
    estimator: Estimator
    fitted: Fitted
    data_sheet: DataSheet | None = None
    answers_measured: bool = True

    @property
    def model(self) -> FittedProfile:
        """The same fit for comparing candidates, which estimates all of them by the model.

        A measured network has none of the errors that the others share.
        """
        return replace(self, answers_measured=False)

    def narrow(self, networks: Sequence[Network], setup: Setup) -> FittedProfile:
        """Return the fit for many networks like these, which takes less time for each of them."""
        narrow = getattr(self.fitted, "narrow", None)
        return self if narrow is None else replace(self, fitted=narrow(networks, setup))

    @cached_property
    def provenance(self) -> str:
        """The weakest provenance that estimates rest on."""
        observations, own = self.profile.observations, self.profile.provenance
        # Files and stores refuse observations of another provenance; a caller may mix them.
        others = () if isinstance(observations, LazyObservations) else observations
        sheet = [DATASHEET] if self.data_sheet and rests_on_sheet(self.profile) else []
        return weakest_provenance([own, *sheet, *dict.fromkeys(one.provenance for one in others)])

    def estimate(
        self,
        networks: Sequence[Network],
        setups: Setup | Sequence[Setup],
        level: float = 0.95,
        *,
        joint: bool = False,
        details: bool = True,
    ) -> Estimates:
        """Estimate the energy and duration of one step of each network.

        Args:
            networks: The networks.
            setups: The setup of each network, or one for all of them.
            level: Probability of the intervals.
            joint: Whether to compute the joint covariance, for ratios and draws.
            details: Whether to compute the energy of each layer, the peak memory and notes, which
                takes as long as all the rest.
        """
        if not 0.0 < level < 1.0:
            raise InputError(f"level is {level}: give a probability between 0 and 1, like 0.95")
        setups = self._list_setups(networks, setups)
        # An estimate also depends on the names of layers and on the totals of a net that was read.
        keys = [
            (network, setup, network.totals, tuple(layer.name for layer in network.layers))
            for network, setup in zip(networks, setups, strict=True)
        ]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        networks, setups = [key[0] for key in numbers], [key[1] for key in numbers]
        prediction = self.fitted.predict(networks, setups, joint=joint, per_layer=details)
        if np.isnan(prediction.energy_j).any():
            raise MissingError(
                f"{self.profile.device.name} has durations but no energies for this setup: attach "
                "a power trace with `joulecast data attach`, or profile it with a meter"
            )
        measured = [self._find_measured(*pair) for pair in zip(networks, setups, strict=True)]
        factors, estimates = [], []
        for at, (network, setup) in enumerate(zip(networks, setups, strict=True)):
            # Sources of error that multiply all of an energy, with their relative sds.
            own = {UNIT_VARIATION: UNIT_SD_SHARE} if self.profile.shipped else {}
            name, share = find_uncounted_share(network)
            if share >= MIN_UNCOUNTED_SHARE:
                own[name] = share
            one = self._make_estimate(prediction, at, own, level)
            if details:
                one = replace(one, peak_memory_bytes=peak_memory(network, setup))
                own_notes = prediction.notes[at] if prediction.notes else ()
                if measured[at] is not None:
                    # What the model does not know was measured, too.
                    notes = *explain_memory(one), *(network.totals.notes if network.totals else ())
                else:
                    notes = list_estimate_notes(one, network, own_notes)
                one = replace(one, blocks=estimate_blocks(network, one.layers), notes=notes)
            factors.append(own)
            estimates.append(one)
        variance, means = prediction.energy_sd_j**2, prediction.energy_j
        cov, names = prediction.energy_cov, dict.fromkeys(name for own in factors for name in own)
        sds = np.array([[own.get(name, 0.0) for name in names] for own in factors])
        variance = variance + (sds**2).sum(axis=1) * (variance + means**2)
        if cov is not None:
            # One factor for all: they run on one unit, and variants of a network lack the same
            # operators.
            cov = cov + (sds @ sds.T) * (cov + np.outer(means, means))
        for at, step in enumerate(measured):
            if step is not None:
                estimates[at] = answer_measured(estimates[at], step)
                variance[at] = step.energy_sd_j**2
                if cov is not None:
                    # Repeating a measurement has nothing to do with errors of the model.
                    cov[at], cov[:, at] = 0.0, 0.0
                    cov[at, at] = variance[at]
        distinct = Estimates(tuple(estimates), variance, cov, tuple(range(len(networks))))
        return distinct.select([numbers[key] for key in keys])

    def _find_measured(self, network: Network, setup: Setup) -> KnownStep | None:
        """Return what was measured of a step; None if it was not."""
        if not self.answers_measured:
            return None
        found = find_steps(self.profile.observations, network, setup)
        if not found:
            return None
        # A shipped profile alone was measured on other units than the user's.
        is_own = not self.profile.shipped
        unit = summarise_observations(self.profile.observations).latest_unit if is_own else None
        return combine_steps(found, unit)

    def predict_means(self, networks: Sequence[Network], setups: Setup | Sequence[Setup]) -> Floats:
        """Return the mean energies of ``estimate``."""
        return self.fitted.predict(networks, self._list_setups(networks, setups)).energy_j

    def _list_setups(
        self, networks: Sequence[Network], setups: Setup | Sequence[Setup]
    ) -> Sequence[Setup]:
        """Return the setup of each network, which the device can run."""
        if not all(network.layers for network in networks):
            raise InputError("the network is empty: give a net with layers")
        listed = [setups] * len(networks) if isinstance(setups, Setup) else setups
        for setup in dict.fromkeys(listed):
            check_sheet_precision(self.profile, setup)
        return listed

    def _make_estimate(
        self, prediction: Prediction, index: int, factors: Mapping[str, float], level: float
    ) -> Estimate:
        energy_j = float(prediction.energy_j[index])
        duration_s = float(prediction.duration_s[index])
        variance = float(prediction.energy_sd_j[index]) ** 2
        # Variances of products: a factor of mean 1 multiplies the energy.
        added = {name: sd**2 * (variance + energy_j**2) for name, sd in factors.items()}
        device_energy_j = host_share = None
        if prediction.device_energy_j is not None:
            device_energy_j = float(prediction.device_energy_j[index])
            host_share = max(0.0, 1.0 - device_energy_j / energy_j)
        sources = prediction.uncertainty_sources[index] if prediction.uncertainty_sources else {}
        ends_s = None
        if prediction.duration_sd_s is not None:
            variance_s = sum(sd**2 for sd in factors.values()) * duration_s**2
            variance_s += float(prediction.duration_sd_s[index]) ** 2
            ends_s = lognormal_interval(duration_s, variance_s, level)
        return Estimate(
            energy_j=energy_j,
            interval_j=lognormal_interval(energy_j, variance + sum(added.values()), level),
            level=level,
            duration_s=duration_s,
            peak_memory_bytes=0,
            layers=prediction.layers[index],
            unseen_share=prediction.unseen_share[index],
            provenance=self.provenance,
            covers=self.profile.covers,
            device=self.profile.device.name,
            estimator=self.estimator.name,
            device_energy_j=device_energy_j,
            host_share=host_share,
            uncertainty_sources=add_sources(sources, variance, added),
            duration_interval_s=ends_s,
            device_memory_bytes=self.profile.device.memory_bytes,
            runtime=self.profile.runtime,
        )


@dataclass(frozen=True)
class Estimates(Sequence[Estimate]):
    """The energy of one step of each of n networks on one device.

    Attributes:
        first_occurrence: For each network the position of the first one that equals it.
    """

    estimates: tuple[Estimate, ...]  # the estimates, in the order of the networks
    variance: Floats  # variance of each energy, n
    cov: Floats | None  # joint covariance of the energies, n x n; None unless it was requested
    first_occurrence: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.estimates)

    @overload
    def __getitem__(self, index: int) -> Estimate: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Estimate]: ...
    def __getitem__(self, index: int | slice) -> Estimate | Sequence[Estimate]:
        return self.estimates[index]

    @property
    def energy_j(self) -> Floats:
        """Mean energies, n."""
        return np.array([estimate.energy_j for estimate in self.estimates])

    @property
    def log_covariance(self) -> Floats:
        """Joint covariance of the logarithms of the energies, n x n."""
        if self.cov is None:
            raise InputError("ratios and draws need the joint covariance: estimate with joint=True")
        return lognormal.log_covariance(self.energy_j, self.cov)

    @property
    def log_variance(self) -> Floats:
        """Variance of the logarithm of each energy, n."""
        return lognormal.log_variance(self.energy_j, self.variance)

    def log_ratio_variance(self, reference: int, others: Sequence[int]) -> Floats:
        """Return the variance of the logarithm of each ratio of an energy to the reference's."""
        cov, index = self.log_covariance, np.asarray(others, int)
        return np.asarray(
            cov[reference, reference] + cov[index, index] - 2.0 * cov[reference, index]
        )

    def probability_within(self, limits_j: Sequence[float]) -> Floats:
        """Return the probability that each energy is at most its limit."""
        margins = np.log(np.asarray(limits_j) / self.energy_j)
        return lognormal.probability_below(margins, self.log_variance)

    def probability_ratio_within(
        self, reference: int, others: Sequence[int], ratios: Sequence[float]
    ) -> Floats:
        """Return the probability that each energy is at most its ratio times the reference's."""
        means, index = self.energy_j, np.asarray(others, int)
        margins = np.log(np.asarray(ratios) * means[reference] / means[index])
        return lognormal.probability_below(margins, self.log_ratio_variance(reference, others))

    def probability_less(
        self, one: int, others: Estimates, other: int, ratio: float = 1.0
    ) -> float:
        """Return the probability that ``self[one]`` is at most ``ratio`` times ``others[other]``.

        Estimates of another device share no errors with these.
        """
        if others is self:
            return float(self.probability_ratio_within(other, [one], [ratio])[0])
        margin = math.log(ratio * others.energy_j[other] / self.energy_j[one])
        variance = float(self.log_variance[one] + others.log_variance[other])
        return lognormal.probability_below(margin, variance)

    def draw(self, count: int, seed: int = 0) -> Floats:
        """Draw the energies jointly, count x n."""
        # Equal networks are drawn once: rounding would make their draws differ.
        first, back = np.unique(self.first_occurrence, return_inverse=True)
        covariance = self.log_covariance[np.ix_(first, first)]
        values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = np.random.default_rng(seed).standard_normal((count, len(root)))
        return np.asarray((self.energy_j[first] * np.exp(normal @ root.T))[:, back])

    def select(self, positions: Sequence[int]) -> Estimates:
        """Return the estimates at some positions, which may repeat."""
        first = {position: index for index, position in reversed(list(enumerate(positions)))}
        return Estimates(
            tuple(self.estimates[position] for position in positions),
            self.variance[list(positions)],
            None if self.cov is None else self.cov[np.ix_(positions, positions)],
            tuple(first[position] for position in positions),
        )


def add_sources(
    sources: Mapping[str, float], variance: float, added: Mapping[str, float]
) -> dict[str, float]:
    """Return shares of the total variance, with those of the factors, the largest first."""
    if not added:
        return dict(sources)
    total = variance + sum(added.values())
    shares = {name: share * variance / total for name, share in sources.items()}
    shares |= {name: part / total for name, part in added.items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def estimate_blocks(network: Network, layers: Sequence[LayerEstimate]) -> tuple[BlockEstimate, ...]:
    """Return the energy of blocks, equal ones together; none without energies of layers."""
    if len(layers) != len(network.layers):
        return ()
    found = []
    for block in find_equal_blocks(network):
        inside = [layers[start : start + block.layer_count] for start in block.starts]
        energy_j = sum(layer.energy_j for own in inside for layer in own)
        found.append(
            BlockEstimate(block.name, block.count, block.layer_count, energy_j, block.starts)
        )
    return tuple(found)


# Shares of FLOPs, bytes or parameters above which a note is worth reading.
_MIN_UNATTRIBUTED_SHARE = 0.01
# Share of the memory above which a step may not fit. Counted peaks are up to a third below those
# measured, which contain workspaces and the allocator's rounding (H200, steps above 3 GB).
_NEARLY_FULL_SHARE = 0.7
_WORK = {"flops": "FLOPs", "bytes": "bytes", "params": "parameters"}


def list_estimate_notes(
    estimate: Estimate, network: Network, prediction_notes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return what a user should know about an estimate, the most important first."""
    notes = [*explain_memory(estimate), *prediction_notes]
    parts = []
    for what, name in _WORK.items():
        share = getattr(network.totals, f"unattributed_{what}_share", 0.0)
        if share > _MIN_UNATTRIBUTED_SHARE:
            parts.append(f"{format_share(share)} of the {name}")
    if parts:
        notes.append(
            f"{', '.join(parts)} belong to no layer and are not in the estimate, which is too low: "
            "`joulecast measure` measures the whole net."
        )
    return (*notes, *list_reading_notes(network))


def explain_memory(estimate: Estimate) -> list[str]:
    """Return a warning if the step does not fit the device's memory, or may not."""
    if estimate.fits_memory is None:
        return []
    needed = format_bytes(estimate.peak_memory_bytes)
    available = format_bytes(estimate.device_memory_bytes)
    if not estimate.fits_memory:
        return [
            f"It would not fit: it needs about {needed} of memory, but {estimate.device} has "
            f"{available}. The estimate is for a device like it with enough memory."
        ]
    if estimate.peak_memory_bytes > _NEARLY_FULL_SHARE * estimate.device_memory_bytes:
        return [
            f"It may not fit: it needs about {needed} of memory, workspaces of the framework "
            f"not included, and {estimate.device} has {available}."
        ]
    return []


NO_COST_RULE = "operators without a cost rule"
"""Name of the uncertainty source that operators of unknown cost bring."""

NO_LAYER = "work in no layer"
"""Name of the uncertainty source that work outside all layers brings."""

MIN_UNCOUNTED_SHARE = 0.005
"""Share below which uncounted work is lost among the errors of sums over layers, 1.3 %."""


def find_uncounted_share(network: Network) -> tuple[str, float]:
    """Return the largest share of a step that no layer counts, and the name of its source.

    A network that was not read from a module has none.
    """
    totals = network.totals
    if totals is None:
        return NO_LAYER, 0.0
    in_no_layer = max(totals.unattributed_flops_share, totals.unattributed_bytes_share)
    if totals.uncounted_bytes_share >= in_no_layer:
        return NO_COST_RULE, totals.uncounted_bytes_share
    return NO_LAYER, in_no_layer


# A device with at least so many observations is fitted to them alone. On an H200, 40 observations
# of layers like the network's estimate as well without the data sheet as with it (6 and 14 %), and
# intervals hold more often; but after 74 of an atlas, estimates of any network have a median error
# of 18 % with the data sheet and of 32 % without.
_MIN_OWN_OBSERVATIONS = 150
# Fewer energies of a device say less about it than its data sheet: anchors alone are four or five.
_MIN_OWN_ENERGIES = 20
# A device that was imported or modelled has no data sheet.
_PROVENANCES = ("measured", "simulated")
_RUNTIMES = ("torch", "simulated")
STARTS_FROM_SHEETS = ("additive",)
"""Estimators that need no observations of a device."""


def find_starting_sheet(profile: Profile) -> DataSheet | None:
    """Return the data sheet that a profile's fit starts from; None if it has enough of its own."""
    if profile.data_sheet is not None:
        return profile.data_sheet
    is_small = len(profile.observations) < _MIN_OWN_OBSERVATIONS
    is_like_sheet = profile.provenance in _PROVENANCES and profile.runtime.startswith(_RUNTIMES)
    # Fits of large profiles, and damaged ones that were not asked for, are not decoded here.
    if not (is_small and is_like_sheet):
        return None
    stored = profile.fits.get(STARTS_FROM_SHEETS[0]) or {}
    if stored.get("encoder", {}).get("sources"):
        # The user chose other devices to start from.
        return None
    return match_device_sheet(profile.device)


def check_sheet_precision(profile: Profile, setup: Setup) -> None:
    """Raise InputError for a precision that the data sheet to start from lacks."""
    sheet = find_starting_sheet(profile)
    if sheet is None:
        return
    if setup.precision not in FLOAT_PRECISIONS:
        raise InputError(
            f"{setup.precision} cannot be estimated from a data sheet: give one of "
            f"{', '.join(FLOAT_PRECISIONS)}"
        )
    sheet.find_peak(setup.precision)


def match_device_sheet(device: Device) -> DataSheet | None:
    """Return the data sheet of a device, by its driver's name or its own; None if none matches."""
    from joulecast.devices.data_sheets import match_data_sheet

    for name in (device.processor, device.name):
        if name and (sheet := match_data_sheet(name)) is not None:
            return sheet
    return None


def rests_on_sheet(profile: Profile) -> bool:
    """Return whether a fit that starts from a data sheet rests on it more than on observations."""
    energies = sum(bool(one.energy_j and one.trial.network.layers) for one in profile.observations)
    return energies < _MIN_OWN_ENERGIES


def make_starting_estimator(name: str, sheet: DataSheet) -> Estimator:
    """Return an estimator that starts from a data sheet."""
    if name not in STARTS_FROM_SHEETS:
        raise InputError(
            f"{name} needs measurements, and {sheet.title} has none: use the estimator "
            f"{STARTS_FROM_SHEETS[0]}, which starts from data sheets, or profile the device"
        )
    from joulecast.estimators.additive.estimator import AdditiveEstimator

    return AdditiveEstimator(data_sheet=sheet)
