"""Choose the data sheet that the fit of a profile starts from."""

from __future__ import annotations

from joulecast.catalogue import match_data_sheet
from joulecast.errors import InputError
from joulecast.estimators.base import Estimator
from joulecast.records import FLOAT_PRECISIONS, DataSheet, Profile, Setup

# A device with at least so many observations is fitted to them alone: on an H200 treated as
# unknown, what others had shown then made estimates neither better nor worse.
_MIN_OWN_OBSERVATIONS = 150
STARTS_FROM_SHEETS = ("additive",)
"""Estimators that need no observations of a device."""


def find_starting_sheet(profile: Profile) -> DataSheet | None:
    """Return the data sheet that a profile's fit starts from; None if it has enough of its own."""
    if profile.data_sheet is not None:
        return profile.data_sheet
    is_small = len(profile.observations) < _MIN_OWN_OBSERVATIONS
    if not is_small or profile.provenance != "measured" or not profile.runtime.startswith("torch"):
        return None
    return match_data_sheet(profile.device.processor)


def check_sheet_precision(profile: Profile, setup: Setup) -> None:
    """Raise InputError for a precision that the data sheet of an unmeasured device lacks."""
    if profile.provenance != "datasheet" or profile.data_sheet is None:
        return
    if setup.precision not in FLOAT_PRECISIONS:
        raise InputError(
            f"{setup.precision} cannot be estimated from a data sheet: give one of "
            f"{', '.join(FLOAT_PRECISIONS)}"
        )
    profile.data_sheet.find_peak(setup.precision)


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
