"""Estimate networks from a profile: fit an estimator to it once, then use the fit repeatedly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulecast.errors import InputError
from joulecast.estimators.base import (
    UNIT_SD_SHARE,
    Estimator,
    Fitted,
    Floats,
    Prediction,
    predict_means,
)
from joulecast.estimators.estimates import Estimates
from joulecast.gp.lognormal import lognormal_interval
from joulecast.kinds import peak_memory
from joulecast.records import Estimate, Network, Profile, Setup, weakest_provenance

UNIT_VARIATION = "unit-to-unit variation"
"""Name of the uncertainty source that a profile of another unit of the device brings."""


@dataclass(frozen=True)
class FittedProfile:
    """A profile and an estimator fitted to it, made by ``fit_profile``."""

    profile: Profile
    estimator: Estimator
    fitted: Fitted

    @property
    def provenance(self) -> str:
        """The weakest provenance that estimates rest on."""
        provenances = (observation.provenance for observation in self.profile.observations)
        return weakest_provenance([self.profile.provenance, *dict.fromkeys(provenances)])

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
            details: Whether to compute the energy of each layer and the peak memory, which takes
                as long as all the rest.
        """
        if not 0.0 < level < 1.0:
            raise InputError(f"level is {level}: give a probability between 0 and 1, like 0.95")
        setups = _list_setups(networks, setups)
        keys = [_identify(*pair) for pair in zip(networks, setups, strict=True)]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        own_networks, own_setups = [key[0] for key in numbers], [key[1] for key in numbers]
        distinct = self._estimate_distinct(own_networks, own_setups, level, joint, details)
        return distinct.select([numbers[key] for key in keys])

    def predict_means(self, networks: Sequence[Network], setups: Setup | Sequence[Setup]) -> Floats:
        """Return the mean energies of ``estimate``, faster if the estimator can."""
        return predict_means(self.fitted, networks, _list_setups(networks, setups))

    def _estimate_distinct(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        level: float,
        joint: bool,
        details: bool,
    ) -> Estimates:
        prediction = self.fitted.predict(networks, setups, joint=joint, per_layer=details)
        variance, means = prediction.energy_sd_j**2, prediction.energy_j
        # Another unit of the device multiplies all energies by one factor: variances of products.
        unit = UNIT_SD_SHARE**2 if self.profile.shipped else 0.0
        unit_variance = unit * (variance + means**2)
        provenance = self.provenance
        estimates = tuple(
            replace(
                self._make_estimate(
                    prediction, index, float(variance[index]), float(unit_variance[index]), level
                ),
                provenance=provenance,
                peak_memory_bytes=peak_memory(network, setup) if details else 0,
            )
            for index, (network, setup) in enumerate(zip(networks, setups, strict=True))
        )
        cov = prediction.energy_cov
        if cov is not None:
            cov = cov + unit * (cov + np.outer(means, means))
        return Estimates(estimates, variance + unit_variance, cov, tuple(range(len(networks))))

    def _make_estimate(
        self,
        prediction: Prediction,
        index: int,
        variance: float,
        unit_variance: float,
        level: float,
    ) -> Estimate:
        energy_j = float(prediction.energy_j[index])
        device_energy_j = host_share = None
        if prediction.device_energy_j is not None:
            device_energy_j = float(prediction.device_energy_j[index])
            host_share = max(0.0, 1.0 - device_energy_j / energy_j)
        sources = prediction.uncertainty_sources[index] if prediction.uncertainty_sources else {}
        return Estimate(
            energy_j=energy_j,
            interval_j=lognormal_interval(energy_j, variance + unit_variance, level),
            level=level,
            duration_s=float(prediction.duration_s[index]),
            peak_memory_bytes=0,
            layers=prediction.layers[index],
            unseen_share=prediction.unseen_share[index],
            provenance=self.profile.provenance,
            covers=self.profile.covers,
            device=self.profile.device.name,
            estimator=self.estimator.name,
            device_energy_j=device_energy_j,
            host_share=host_share,
            uncertainty_sources=_add_unit_variation(sources, variance, unit_variance),
            duration_interval_s=self._find_duration_interval(prediction, index, level),
        )

    def _find_duration_interval(
        self, prediction: Prediction, index: int, level: float
    ) -> tuple[float, float] | None:
        if prediction.duration_sd_s is None:
            return None
        mean_s = float(prediction.duration_s[index])
        unit_share = UNIT_SD_SHARE * self.profile.shipped
        variance = float(prediction.duration_sd_s[index]) ** 2 + (unit_share * mean_s) ** 2
        return lognormal_interval(mean_s, variance, level)


def _list_setups(networks: Sequence[Network], setups: Setup | Sequence[Setup]) -> Sequence[Setup]:
    if not all(network.layers for network in networks):
        raise InputError("the network is empty: give a net with layers")
    return [setups] * len(networks) if isinstance(setups, Setup) else setups


def _identify(network: Network, setup: Setup) -> Any:
    """Return what an estimate depends on: layer names and the totals of a read net included."""
    return network, setup, network.totals, tuple(layer.name for layer in network.layers)


def _add_unit_variation(
    sources: Mapping[str, float], variance: float, unit_variance: float
) -> dict[str, float]:
    """Return shares of the total variance, with that of another unit of the same device."""
    if not unit_variance:
        return dict(sources)
    own_share = variance / (variance + unit_variance)
    shares = {name: share * own_share for name, share in sources.items()}
    shares[UNIT_VARIATION] = 1.0 - own_share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
