"""Estimate networks from a profile: fit an estimator to it once, then use the fit repeatedly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from joulecast.catalogue import DATASHEET
from joulecast.errors import InputError, MissingError
from joulecast.estimators.base import (
    UNIT_SD_SHARE,
    Estimator,
    Fitted,
    Floats,
    Prediction,
    predict_means,
)
from joulecast.estimators.block_estimates import estimate_blocks
from joulecast.estimators.estimate_notes import list_estimate_notes
from joulecast.estimators.estimates import Estimates
from joulecast.estimators.sheet_start import check_sheet_precision, rests_on_sheet
from joulecast.estimators.uncounted_work import (
    MIN_UNCOUNTED_SHARE,
    find_uncounted_share,
    is_step_measured,
)
from joulecast.gp.lognormal import lognormal_interval
from joulecast.kinds import peak_memory
from joulecast.records import (
    DataSheet,
    Estimate,
    LazyObservations,
    Network,
    Profile,
    Setup,
    weakest_provenance,
)

UNIT_VARIATION = "unit-to-unit variation"
"""Name of the uncertainty source that a profile of another unit of the device brings."""


@dataclass(frozen=True)
class FittedProfile:
    """A profile and an estimator fitted to it, made by ``fit_profile``.

    Attributes:
        data_sheet: The data sheet that the fit started from; None if it needed none.
    """

    profile: Profile
    estimator: Estimator
    fitted: Fitted
    data_sheet: DataSheet | None = None

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
        keys = [_identify(*pair) for pair in zip(networks, setups, strict=True)]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        own_networks, own_setups = [key[0] for key in numbers], [key[1] for key in numbers]
        distinct = self._estimate_distinct(own_networks, own_setups, level, joint, details)
        return distinct.select([numbers[key] for key in keys])

    def predict_means(self, networks: Sequence[Network], setups: Setup | Sequence[Setup]) -> Floats:
        """Return the mean energies of ``estimate``, faster if the estimator can."""
        return predict_means(self.fitted, networks, self._list_setups(networks, setups))

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

    def _estimate_distinct(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        level: float,
        joint: bool,
        details: bool,
    ) -> Estimates:
        prediction = self.fitted.predict(networks, setups, joint=joint, per_layer=details)
        if np.isnan(prediction.energy_j).any():
            raise MissingError(
                f"{self.profile.device.name} has durations but no energies for this setup: attach "
                "a power trace with `joulecast data attach`, or profile it with a meter"
            )
        variance, means = prediction.energy_sd_j**2, prediction.energy_j
        pairs = list(zip(networks, setups, strict=True))
        factors = [self._find_factors(*pair) for pair in pairs]
        estimates = [
            self._make_estimate(prediction, index, factors[index], level)
            for index in range(len(networks))
        ]
        if details:
            notes = prediction.notes or ((),) * len(networks)
            estimates = [_add_details(*one) for one in zip(estimates, pairs, notes, strict=True)]
        cov, squares = prediction.energy_cov, variance + means**2
        added = np.zeros(len(networks))
        for name in dict.fromkeys(name for own in factors for name in own):
            sds = np.array([own.get(name, 0.0) for own in factors])
            added += sds**2 * squares
            if prediction.energy_cov is not None and cov is not None:
                # One factor for all: they run on one unit, and variants of a network lack the same
                # operators.
                products = prediction.energy_cov + np.outer(means, means)
                cov = cov + np.outer(sds, sds) * products
        return Estimates(tuple(estimates), variance + added, cov, tuple(range(len(networks))))

    def _find_factors(self, network: Network, setup: Setup) -> dict[str, float]:
        """Return sources of error that multiply all of an energy, with their relative sds."""
        factors = {UNIT_VARIATION: UNIT_SD_SHARE} if self.profile.shipped else {}
        name, share = find_uncounted_share(network)
        if share >= MIN_UNCOUNTED_SHARE and not is_step_measured(
            network, setup, self.profile.observations
        ):
            factors[name] = share
        return factors

    def _make_estimate(
        self, prediction: Prediction, index: int, factors: Mapping[str, float], level: float
    ) -> Estimate:
        energy_j, variance = (
            float(prediction.energy_j[index]),
            float(prediction.energy_sd_j[index]) ** 2,
        )
        # Variances of products: a factor of mean 1 multiplies the energy.
        added = {name: sd**2 * (variance + energy_j**2) for name, sd in factors.items()}
        device_energy_j = host_share = None
        if prediction.device_energy_j is not None:
            device_energy_j = float(prediction.device_energy_j[index])
            host_share = max(0.0, 1.0 - device_energy_j / energy_j)
        sources = prediction.uncertainty_sources[index] if prediction.uncertainty_sources else {}
        return Estimate(
            energy_j=energy_j,
            interval_j=lognormal_interval(energy_j, variance + sum(added.values()), level),
            level=level,
            duration_s=float(prediction.duration_s[index]),
            peak_memory_bytes=0,
            layers=prediction.layers[index],
            unseen_share=prediction.unseen_share[index],
            provenance=self.provenance,
            covers=self.profile.covers,
            device=self.profile.device.name,
            estimator=self.estimator.name,
            device_energy_j=device_energy_j,
            host_share=host_share,
            uncertainty_sources=_add_sources(sources, variance, added),
            duration_interval_s=_find_duration_interval(prediction, index, factors, level),
            device_memory_bytes=self.profile.device.memory_bytes,
            runtime=self.profile.runtime,
        )


def _identify(network: Network, setup: Setup) -> Any:
    """Return what an estimate depends on: layer names and the totals of a read net included."""
    return network, setup, network.totals, tuple(layer.name for layer in network.layers)


def _add_details(
    estimate: Estimate, step: tuple[Network, Setup], prediction_notes: Sequence[str]
) -> Estimate:
    """Return an estimate with peak memory, equal blocks and notes."""
    network, setup = step
    detailed = replace(
        estimate,
        peak_memory_bytes=peak_memory(network, setup),
        blocks=estimate_blocks(network, estimate.layers),
    )
    return replace(detailed, notes=list_estimate_notes(detailed, network, prediction_notes))


def _find_duration_interval(
    prediction: Prediction, index: int, factors: Mapping[str, float], level: float
) -> tuple[float, float] | None:
    if prediction.duration_sd_s is None:
        return None
    mean_s = float(prediction.duration_s[index])
    variance = float(prediction.duration_sd_s[index]) ** 2
    variance += sum(sd**2 for sd in factors.values()) * mean_s**2
    return lognormal_interval(mean_s, variance, level)


def _add_sources(
    sources: Mapping[str, float], variance: float, added: Mapping[str, float]
) -> dict[str, float]:
    """Return shares of the total variance, with those of the factors, the largest first."""
    if not added:
        return dict(sources)
    total = variance + sum(added.values())
    shares = {name: share * variance / total for name, share in sources.items()}
    shares |= {name: part / total for name, part in added.items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
