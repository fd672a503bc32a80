"""Methods of estimating, one file each, and the question they all answer.

``find_estimator`` gives one by name; ``estimate_network`` asks a profile what a step of a network
costs. A new method is a file beside these and a row of ESTIMATORS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

from joulecast.errors import InputError, MissingError
from joulecast.estimators.additive import AdditiveEstimator
from joulecast.estimators.base import Estimator, Json, Prediction
from joulecast.estimators.flops import FlopsEstimator, LinearFlopsEstimator
from joulecast.estimators.neuralpower import NeuralPowerEstimator
from joulecast.estimators.subtractive import SubtractiveEstimator
from joulecast.estimators.table import UNIT_SPREAD
from joulecast.kinds import peak_memory
from joulecast.records import Estimate, Network, Profile, Setup, weakest_provenance

ESTIMATORS: dict[str, type[Estimator]] = {
    AdditiveEstimator.name: AdditiveEstimator,
    SubtractiveEstimator.name: SubtractiveEstimator,
    NeuralPowerEstimator.name: NeuralPowerEstimator,
    FlopsEstimator.name: FlopsEstimator,
    LinearFlopsEstimator.name: LinearFlopsEstimator,
}
DEFAULT = AdditiveEstimator.name


def find_estimator(name: str = DEFAULT) -> Estimator:
    """An estimator by its name."""
    if name not in ESTIMATORS:
        raise InputError(f"there is no estimator {name!r}; known are {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]()


def estimate_network(
    profile: Profile,
    network: Network,
    setup: Setup,
    estimator: str = DEFAULT,
    level: float = 0.95,
) -> Estimate:
    """What a step of a network costs on the profile's device.

    Args:
        profile: What the device has learnt.
        network: The net in question.
        setup: How it is trained.
        estimator: Which method answers.
        level: How probable the interval shall be.

    Raises:
        MissingError: The profile is empty, or the estimator cannot use what it holds.
    """
    return estimate_networks(profile, [network], setup, estimator, level)[0]


def estimate_networks(
    profile: Profile,
    networks: Sequence[Network],
    setup: Setup,
    estimator: str = DEFAULT,
    level: float = 0.95,
) -> list[Estimate]:
    """What a step of each of some networks costs: as ``estimate_network``, and much quicker."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level is {level}: give a probability between 0 and 1, like 0.95")
    if not all(network.layers for network in networks):
        raise InputError("an empty network costs nothing; give a net with layers")
    method = find_estimator(estimator)
    answer = method.predict(fit_profile(profile, method), networks, setup, joint=False)
    basis = weakest_provenance(
        [profile.provenance, *(seen.provenance for seen in profile.observations)]
    )
    return [
        _make_estimate(profile, answer, at, network, setup, basis, estimator, level)
        for at, network in enumerate(networks)
    ]


def _make_estimate(
    profile: Profile,
    answer: Prediction,
    at: int,
    network: Network,
    setup: Setup,
    basis: str,
    estimator: str,
    level: float,
) -> Estimate:
    """What a prediction says of one of its networks."""
    energy_j, variance = float(answer.energy_j[at]), float(answer.energy_sd_j[at]) ** 2
    strange = (UNIT_SPREAD * energy_j) ** 2 if profile.shipped else 0.0
    return Estimate(
        energy_j=energy_j,
        interval_j=make_interval(energy_j, variance + strange, level),
        level=level,
        duration_s=float(answer.duration_s[at]),
        peak_memory_bytes=peak_memory(network, setup),
        layers=answer.layers[at],
        unseen_share=answer.unseen_share[at],
        basis=basis,
        covers=profile.covers,
        device=profile.device.name,
        estimator=estimator,
        device_j=None if answer.device_j is None else float(answer.device_j[at]),
        host_share=_share_host(answer, at),
        doubts=_add_doubt(answer.doubts[at] if answer.doubts else {}, variance, strange),
    )


def _add_doubt(doubts: Mapping[str, float], variance: float, strange: float) -> dict[str, float]:
    """Shares of the variance, with that of another unit of the same device."""
    if not strange:
        return dict(doubts)
    left = variance / (variance + strange)
    shares = {words: share * left for words, share in doubts.items()}
    shares["your unit of the device is another one"] = 1.0 - left
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _share_host(answer: Prediction, at: int) -> float | None:
    """What of the joules of a network is waiting for the host."""
    if answer.device_j is None:
        return None
    return max(0.0, 1.0 - float(answer.device_j[at] / answer.energy_j[at]))


def renew_estimate(answer: Estimate, energy_j: float, steps: int, spread: float = 0.03) -> Estimate:
    """An estimate after the first real steps of a run were seen.

    Args:
        answer: What was estimated before the run.
        energy_j: Joules that the first steps took together.
        steps: How many steps that were.
        spread: How far a few steps may be from the rest of the run, as a share.

    Raises:
        InputError: There is nothing to learn from.
    """
    if energy_j <= 0 or steps < 1:
        raise InputError(f"{energy_j} J in {steps} steps: give joules above 0 and steps from 1 on")
    seen_j = energy_j / steps
    z = NormalDist().inv_cdf(0.5 + answer.level / 2)
    width = math.log(answer.interval_j[1] / answer.energy_j) / z
    gain = width**2 / (width**2 + spread**2)
    factor = math.exp(gain * math.log(seen_j / answer.energy_j))
    half = math.exp(z * width * math.sqrt(1.0 - gain))
    layers = tuple(replace(layer, energy_j=layer.energy_j * factor) for layer in answer.layers)
    return replace(
        answer,
        energy_j=answer.energy_j * factor,
        interval_j=(answer.energy_j * factor / half, answer.energy_j * factor * half),
        layers=layers,
        device_j=None if answer.device_j is None else answer.device_j * factor,
        doubts={"the first steps may differ from the rest": 1.0},
    )


def fit_profile(profile: Profile, method: Estimator) -> Json:
    """A method's fitted numbers: those of the profile, or new ones where more was seen since."""
    stored = profile.fits.get(method.name)
    seen = sum(map(method.uses, profile.observations))
    readable = stored is not None and stored.get("version", 1) == getattr(method, "version", 1)
    if stored is not None and readable and seen in (0, stored.get("seen", seen)):
        return stored
    if not seen:
        raise MissingError(
            f"the profile of {profile.device.name} holds nothing that {method.name} can learn "
            "from: run `joulecast profile NET` on that device first"
        )
    return method.fit(profile.observations)


def make_interval(mean_j: float, variance: float, level: float) -> tuple[float, float]:
    """A log-normal interval around a mean: never below zero, longer upwards where doubt is large.

    Narrow, it is the usual mean plus and minus z standard deviations.
    """
    if mean_j <= 0:
        return 0.0, max(0.0, mean_j) + NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance)
    width = math.sqrt(math.log1p(max(0.0, variance) / mean_j**2))
    factor = math.exp(NormalDist().inv_cdf(0.5 + level / 2) * width)
    return mean_j / factor, mean_j * factor
