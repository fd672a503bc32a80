"""Choose the data sheet that the fit of a profile starts from."""

from __future__ import annotations

from joulecast.catalogue import match_data_sheet
from joulecast.errors import InputError
from joulecast.estimators.base import Estimator
from joulecast.records import FLOAT_PRECISIONS, DataSheet, Device, Profile, Setup

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
    if not is_small or not is_like_sheet or _has_sources(profile):
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
    for name in (device.processor, device.name):
        if name and (sheet := match_data_sheet(name)) is not None:
            return sheet
    return None


def rests_on_sheet(profile: Profile) -> bool:
    """Return whether a fit that starts from a data sheet rests on it more than on observations."""
    energies = sum(bool(one.energy_j and one.trial.network.layers) for one in profile.observations)
    return energies < _MIN_OWN_ENERGIES


def _has_sources(profile: Profile) -> bool:
    """Return whether the user chose other devices to start from."""
    stored = profile.fits.get(STARTS_FROM_SHEETS[0])
    return bool(stored and stored.get("encoder", {}).get("sources"))


def make_starting_estimator(name: str, sheet: DataSheet) -> Estimator:
    """Return an estimator that starts from a data sheet.

    Raises:
        InputError: The estimator needs observations.
    """
    if name not in STARTS_FROM_SHEETS:
        raise InputError(
            f"{name} needs measurements, and {sheet.title} has none: use the estimator "
            f"{STARTS_FROM_SHEETS[0]}, which starts from data sheets, or profile the device"
        )
    from joulecast.estimators.additive.estimator import AdditiveEstimator

    return AdditiveEstimator(data_sheet=sheet)
