"""Find the profiles that a device starts from, and give them to its estimator.

    names of profiles ──▶ profiles of the same framework ──▶ their fits ──▶ estimator with sources

Without names, a device keeps the sources of its stored fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from joulecast.features.profiles import read_outside_profile
from joulecast.records import Profile
from joulecast.system.errors import InputError, arg

if TYPE_CHECKING:
    from joulecast.estimators import Estimator
    from joulecast.estimators.additive.encode import SourceDevice
    from joulecast.store import Store

# The estimator that can start from other devices.
_TRANSFERS = "additive"


def check_can_start_from(names: Sequence[str], estimator: str) -> None:
    """Raise InputError if an estimator is to start from other devices and cannot."""
    if names and estimator != _TRANSFERS:
        raise InputError(
            f"{estimator} cannot start from other devices: leave {arg('from_')} out, or use the "
            f"estimator {_TRANSFERS}"
        )


def make_estimator(
    estimator: str, names: Sequence[str], own: Profile, store: str | None = None
) -> Estimator:
    """Return an estimator that starts from other devices; without names, from those of the fit."""
    from joulecast.estimators import choose_estimator, find_estimator

    estimator = choose_estimator(estimator, own.runtime)
    check_can_start_from(names, estimator)
    if estimator != _TRANSFERS:
        return find_estimator(estimator)
    from joulecast.estimators.additive.estimator import AdditiveEstimator
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        if not names:
            return AdditiveEstimator(_load_sources(own.key, opened))
        found = [_find_source(name, own, opened) for name in names]
        profiles = {one.key: one for one in found}
        return AdditiveEstimator(tuple(map(_learn_from, profiles.values())))


def _load_sources(key: str, store: Store) -> tuple[SourceDevice, ...]:
    """Return the sources of a stored fit."""
    from joulecast.estimators.additive.estimator import AdditiveEstimator

    data = store.load_fit(key, _TRANSFERS)
    if data is None or data.get("version", 1) != AdditiveEstimator.version:
        return ()
    return AdditiveEstimator().load(data).sources


def _find_source(name: str, own: Profile, store: Store) -> Profile:
    if name.endswith(".json"):
        candidates = [read_outside_profile(name)]
    else:
        candidates = [store.load_profile(one.key) for one in store.list_matches(name)]
    others = [one for one in candidates if one.key != own.key]
    if not others:
        raise InputError(
            f"{name!r} is the profile of this device itself: give {arg('from_')} other devices, or "
            "leave it out"
        )
    framework = own.runtime.partition("-")[0]
    alike = [one for one in others if one.runtime.partition("-")[0] == framework]
    if not alike:
        raise InputError(
            f"{name!r} was profiled with {others[0].runtime}, this device with {own.runtime}: "
            "profiles of different frameworks are not mixed"
        )
    return alike[0]


def _learn_from(profile: Profile) -> SourceDevice:
    from joulecast.estimators import fit_profile
    from joulecast.estimators.additive.estimator import FittedAdditive

    fitted = fit_profile(profile, _TRANSFERS).fitted
    assert isinstance(fitted, FittedAdditive)
    return fitted.as_source(profile.device.name, profile.key)
