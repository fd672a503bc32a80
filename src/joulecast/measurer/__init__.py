"""Measure trials: run them on a runtime, under a meter, and return observations."""

from joulecast.measurer.base import TrialMeasurer
from joulecast.measurer.measurer import Measurer
from joulecast.measurer.windows import MeasureLimits
from joulecast.meters.base import MeasureClock
