"""Methods of estimating, one file each, and the question they all answer.

``find_estimator`` gives one by name; ``estimate_network`` asks a profile what a step of a network
costs. A new method is a file beside these and a row of ESTIMATORS.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from joulecast.errors import InputError, MissingError
from joulecast.estimators.additive import AdditiveEstimator
from joulecast.estimators.base import Estimator, Json
from joulecast.estimators.flops import FlopsEstimator
from joulecast.estimators.subtractive import SubtractiveEstimator
from joulecast.kinds import peak_memory
from joulecast.records import Estimate, Network, Profile, Setup, weakest_provenance

ESTIMATORS: dict[str, type[Estimator]] = {
    AdditiveEstimator.name: AdditiveEstimator,
    SubtractiveEstimator.name: SubtractiveEstimator,
    FlopsEstimator.name: FlopsEstimator,
}
DEFAULT = SubtractiveEstimator.name


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
    if not 0.0 < level < 1.0:
        raise InputError(f"level is {level}: give a probability between 0 and 1, like 0.95")
    if not network.layers:
        raise InputError("an empty network costs nothing; give a net with layers")
    method = find_estimator(estimator)
    answer = method.predict(fit_profile(profile, method), [network], setup, joint=False)
    energy_j = float(answer.energy_j[0])
    return Estimate(
        energy_j=energy_j,
        interval_j=make_interval(energy_j, float(answer.energy_sd_j[0]) ** 2, level),
        level=level,
        duration_s=float(answer.duration_s[0]),
        peak_memory_bytes=peak_memory(network, setup),
        layers=answer.layers[0],
        unseen_share=answer.unseen_share[0],
        basis=weakest_provenance(
            [profile.provenance, *(seen.provenance for seen in profile.observations)]
        ),
        covers=profile.covers,
        device=profile.device.name,
        estimator=estimator,
    )


def fit_profile(profile: Profile, method: Estimator) -> Json:
    """A method's fitted numbers: those of the profile, or new ones where more was seen since."""
    stored = profile.fits.get(method.name)
    seen = sum(map(method.uses, profile.observations))
    if stored is not None and seen in (0, stored.get("seen", seen)):
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
