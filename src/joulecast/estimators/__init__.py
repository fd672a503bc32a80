"""Estimators of training energy, and functions that estimate networks from a profile.

    find_estimator      an estimator by its name, built in or from a plug-in
    choose_estimator    the estimator that suits a runtime, unless one is named
    fit_profile         a profile with an estimator fitted to it
    estimate_network    the energy of one network, from a profile
    update_estimate     an estimate after the first steps of a real run

Other distributions add estimators through the entry-point group ``joulecast.estimators``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

from joulecast.estimators.base import Estimator as Estimator
from joulecast.estimators.base import FitComponent, Fitted, restore_fit
from joulecast.estimators.fitted_profile import (
    STARTS_FROM_SHEETS,
    find_starting_sheet,
    make_starting_estimator,
)
from joulecast.estimators.fitted_profile import Estimates as Estimates
from joulecast.estimators.fitted_profile import FittedProfile as FittedProfile
from joulecast.estimators.plausibility import drop_contradicted
from joulecast.gp.lognormal import interval_log_sd, normal_quantile
from joulecast.records import Estimate, Network, Profile, Setup, find_fit_count
from joulecast.system.errors import InputError, MissingError

DEFAULT = "additive"
AUTO = "auto"
"""Stands for the estimator that suits the runtime of a profile."""
# Runtimes that fuse run kernels, not layers. Profiles of earlier versions name torch.compile as a
# runtime.
_BY_RUNTIME = {"onnxruntime": "kernel-gp", "torch_compile": "kernel-gp"}


_PAPER_METHODS = ("subtractive", "subtractive-blocks", "ampere")
_BASELINES = ("flops", "flops-linear", "work-linear", "constant")
# Module and class: importing all of them takes longer than an estimate with one.
ESTIMATORS = {
    "additive": f"{__name__}.additive.estimator:AdditiveEstimator",
    **dict.fromkeys(_PAPER_METHODS, f"{__name__}.subtractive.estimator:SubtractiveEstimator"),
    "kernel-gp": f"{__name__}.kernels:KernelProcessEstimator",
    **dict.fromkeys(_BASELINES, f"{__name__}.whole_networks:WholeNetworkEstimator"),
}

FIRST_STEPS = "the rest of the run may differ from its beginning"
"""Name of the uncertainty source that remains after the first steps of a run."""


def list_estimator_names() -> tuple[str, ...]:
    """Return the names of all estimators, the built-in ones first."""
    return (*ESTIMATORS, *_load_plugins())


def find_estimator(name: str = DEFAULT) -> Estimator:
    """Return an estimator by its name.

    After a colon, names of the paper's method list deviations from the paper that are switched:
    ``subtractive:stop`` stops as the paper does, ``ampere:stop`` as we do.
    """
    base, *changes = name.split(":")
    estimator: Estimator
    if base in ESTIMATORS and (not changes or base in _PAPER_METHODS):
        make = resolve_name(ESTIMATORS[base])
        estimator = make(name) if base in (*_PAPER_METHODS, *_BASELINES) else make()
        return estimator
    plugins = _load_plugins()
    if name not in plugins:
        known = ", ".join(list_estimator_names())
        raise InputError(f"there is no estimator {name!r}: give one of {known}")
    estimator = plugins[name]()
    if estimator.name != name:
        raise MissingError(
            f"the plug-in {name!r} makes an estimator called {estimator.name!r}: give its entry "
            "point the same name"
        )
    return estimator


def choose_estimator(name: str, runtime: str) -> str:
    """Return the name of an estimator: as given, or for ``auto`` that which suits a runtime.

    A runtime is named as profiles name it: ``onnxruntime-1.31.1``.
    """
    return name if name != AUTO else _BY_RUNTIME.get(runtime.partition("-")[0], DEFAULT)


def check_estimator(name: str) -> None:
    """Raise InputError or MissingError unless there is an estimator of a name, or it is auto."""
    if name != AUTO:
        find_estimator(name)


def estimate_network(
    profile: Profile, network: Network, setup: Setup, estimator: str = AUTO, level: float = 0.95
) -> Estimate:
    """Estimate the energy of one step of a network on the profile's device."""
    return fit_profile(profile, estimator).estimate([network], setup, level)[0]


def fit_profile(
    profile: Profile, estimator: str = AUTO, *, accepts_old: bool = False
) -> FittedProfile:
    """Fit an estimator to a profile, to estimate many networks from it.

    The profile's stored fit is used if it was fitted to as many observations as there are now, with
    ``accepts_old`` also if to fewer. A device of which little or nothing was measured starts from
    its data sheet.
    """
    name = choose_estimator(estimator, profile.runtime)
    sheet = find_starting_sheet(profile)
    if sheet is not None and (name in STARTS_FROM_SHEETS or not profile.observations):
        method = make_starting_estimator(name, sheet)
        fitted = method.fit(drop_contradicted(profile.observations))
        return FittedProfile(profile, method, fitted, sheet)
    method = find_estimator(name)
    stored = load_fit(profile, method)
    if stored is not None:
        count = find_fit_count(profile.fits, method.name)
        is_current = accepts_old or count == len(profile.observations)
        if not is_current:
            # Without that number, or where it counts a store's own observations alone, they must
            # be parsed.
            count = sum(map(method.uses, drop_contradicted(profile.observations)))
            is_current = count in (0, stored.observation_count)
        if is_current:
            return FittedProfile(profile, method, stored)
    if not any(map(method.uses, profile.observations)):
        raise MissingError(
            f"the profile of {profile.device.name} holds nothing that {name} can learn from: "
            "run `joulecast profile NET` on that device first"
        )
    fitted = method.fit(drop_contradicted(profile.observations), stored)
    return FittedProfile(profile, method, fitted)


def describe_fits(profile: Profile) -> dict[str, tuple[FitComponent, ...]]:
    """Return the components of each stored fit of a profile.

    Fits of unknown estimators, or of other versions of them, have no components.
    """
    components: dict[str, tuple[FitComponent, ...]] = {}
    for name in profile.fits:
        try:
            fitted = load_fit(profile, find_estimator(name))
        except (InputError, MissingError):
            fitted = None
        components[name] = fitted.describe() if fitted else ()
    return components


def update_estimate(
    estimate: Estimate, energy_j: float, steps: int, sd_share: float = 0.03
) -> Estimate:
    """Update an estimate with the measured energy of a run's first steps."""
    if energy_j <= 0 or steps < 1:
        raise InputError(
            f"{energy_j} J in {steps} steps: give an energy above 0 and at least 1 step"
        )
    log_sd = interval_log_sd(estimate.energy_j, estimate.interval_j, estimate.level)
    gain = log_sd**2 / (log_sd**2 + sd_share**2)
    factor = math.exp(gain * math.log(energy_j / steps / estimate.energy_j))
    mean_j, device_j = estimate.energy_j * factor, estimate.device_energy_j
    half = math.exp(normal_quantile(estimate.level) * log_sd * math.sqrt(1.0 - gain))
    return replace(
        estimate,
        energy_j=mean_j,
        interval_j=(mean_j / half, mean_j * half),
        layers=tuple(replace(one, energy_j=one.energy_j * factor) for one in estimate.layers),
        blocks=tuple(replace(one, energy_j=one.energy_j * factor) for one in estimate.blocks),
        device_energy_j=None if device_j is None else device_j * factor,
        uncertainty_sources={FIRST_STEPS: 1.0},
        is_measured=False,
    )


def _load_plugins() -> Mapping[str, Any]:
    from joulecast.system.plugins import ESTIMATOR_GROUP, load_plugins

    return load_plugins(ESTIMATOR_GROUP, frozenset(ESTIMATORS))


def load_fit(profile: Profile, method: Estimator) -> Fitted | None:
    """Return a profile's stored fit of an estimator; None if there is none of its version."""
    return restore_fit(method, profile.fits.get(method.name))
