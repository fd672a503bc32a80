"""Methods of estimating, one file each, and the question they all answer.

``find_estimator`` gives one by name; ``estimate_network`` asks a profile what a step of a network
costs. A new method is a file beside these and a row of ESTIMATORS.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

from joulecast.errors import InputError, MissingError
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.base import Estimator, Json
from joulecast.estimators.baselines.flops import FlopsEstimator, LinearFlopsEstimator
from joulecast.estimators.baselines.neuralpower import NeuralPowerEstimator
from joulecast.estimators.estimates import Estimates as Estimates
from joulecast.estimators.estimates import OpenProfile as OpenProfile
from joulecast.estimators.estimates import find_chance as find_chance
from joulecast.estimators.estimates import make_interval as make_interval
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.records import Estimate, Network, Profile, Setup

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
    return open_profile(profile, estimator).ask([(network, setup)], level).each[0]


def open_profile(profile: Profile, estimator: str = DEFAULT) -> OpenProfile:
    """A profile that is asked more than once: many networks at a time, errors told jointly.

    Raises:
        MissingError: The profile is empty, or the estimator cannot use what it holds.
    """
    method = find_estimator(estimator)
    fitted = fit_profile(profile, method)
    opened = method.open(fitted) if isinstance(method, AdditiveEstimator) else None
    return OpenProfile(profile, method, fitted, opened)


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
    stored: Json | None = profile.fits.get(method.name)
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
