"""Measure trials: run them on a runtime, under a meter, and return observations."""

from joulecast.measurer.base import TrialMeasurer
from joulecast.measurer.measurer import MeasureClock, Measurer
from joulecast.measurer.windows import MeasureLimits

__all__ = ["MeasureClock", "MeasureLimits", "Measurer", "TrialMeasurer"]
