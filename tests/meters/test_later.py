"""The recorder: it notes windows, and its readings stand for a constant power."""

import pytest
from virtual_instruments import VirtualClock

from joulecast.errors import InputError
from joulecast.meters import make_meter
from joulecast.meters.file import STAND_IN_W, LaterMeter, detect_later
from joulecast.testing.meters import MeterContract


class TestLaterMeter(MeterContract):
    @pytest.fixture(autouse=True)
    def clock(self):
        self.clock = VirtualClock()

    def make_meter(self):
        return LaterMeter(now=self.clock.now, wall=lambda: 1e9 + self.clock.now())

    def load(self, duration_s):
        self.clock.sleep(duration_s)


def test_span_is_on_the_clock_of_the_run_although_the_system_clock_is_set():
    clock, wall = VirtualClock(0.0), [1e9]
    with LaterMeter(now=clock.now, wall=lambda: wall[0]) as meter:
        wall[0] = 2e9
        clock.time_s = 5.0
        meter.begin()
        clock.time_s = 7.5
        reading = meter.end()
    assert reading.span_s == (1e9 + 5.0, 1e9 + 7.5)
    assert reading.energy_j == STAND_IN_W * 2.5


def test_what_the_instrument_covers_can_be_named():
    assert make_meter("later").covers == "board"
    named = make_meter("later:battery")
    assert (named.covers, named.is_recorder) == ("battery", True)
    assert detect_later()[0].available


def test_energy_that_is_still_to_come_cannot_be_added_up():
    with pytest.raises(InputError, match="still to come"):
        make_meter("modelled+later")
