"""Measure trials: run them on a runtime, under a meter, and return observations."""

from joulecast.measurer.base import TrialMeasurer
from joulecast.measurer.measurer import MeasureClock, Measurer, make_measurer
from joulecast.measurer.windows import MeasuredWindow, MeasureLimits

__all__ = [
    "MeasureClock",
    "MeasureLimits",
    "MeasuredWindow",
    "Measurer",
    "TrialMeasurer",
    "make_measurer",
]
