"""Errors of an instrument are those of the meter, not of the trial that it was reading."""

import pytest

from joulecast.errors import MeasurementError, MeterLostError
from joulecast.meters import GuardedMeter, Reading


class FailingMeter(GuardedMeter):
    name, covers, provenance = "failing", "board", "measured"

    def __init__(self, fails_at):
        self._fails_at = fails_at

    def _start(self):
        self._fail("start")

    def _stop(self):
        self._fail("stop")
        return Reading(1.0, 1.0)

    def _fail(self, place):
        if place == self._fails_at:
            raise MeasurementError("the sensor can no longer be read (no such file): plug it in")


@pytest.mark.parametrize("place", ["start", "stop"])
def test_instrument_that_fails_is_a_lost_meter(place):
    meter = FailingMeter(place)
    meter.open()
    with pytest.raises(MeterLostError, match="plug it in"):
        meter.begin()
        meter.end()
    meter._fails_at = ""
    meter.begin()
    assert meter.end().energy_j == 1.0


def test_wrong_order_of_calls_is_not_a_lost_meter():
    with pytest.raises(MeasurementError, match="before open") as caught:
        FailingMeter("").begin()
    assert not isinstance(caught.value, MeterLostError)
