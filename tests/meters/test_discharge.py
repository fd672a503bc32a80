"""Energy from slow updates: any update interval and any moment of the window."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_instruments import VirtualClock

from joulecast.errors import InputError
from joulecast.meters.base import UnavailableError
from joulecast.meters.battery import BatteryState, DischargeMeter
from joulecast.meters.modelled import ModelledMeter
from joulecast.meters.sum import SumMeter


class Gauge:
    """A gauge that shows the mean power of the time since its last update."""

    def __init__(self, clock, every_s, charger=""):
        self.clock, self.every_s, self.charger = clock, every_s, charger

    def read(self):
        number = int(self.clock.now() / self.every_s)
        return BatteryState(self.charger, 5.0 + 0.001 * (number % 2))

    def make_meter(self):
        clock = self.clock
        return DischargeMeter(self.read, "gauge", 0.5, clock.now, clock.sleep, clock.make_ticker)


@settings(max_examples=25)
@given(st.floats(0.6, 40.0), st.floats(0.0, 40.0))
def test_slow_updates_are_met_by_longer_windows(every_s, wait_s):
    clock = VirtualClock(step_s=0.5)
    with Gauge(clock, every_s).make_meter() as meter:
        clock.sleep(wait_s)
        meter.begin()
        clock.sleep(meter.window_s)
        reading = meter.end()
    assert reading.faults == ()
    assert reading.power_w == pytest.approx(5.0, rel=1e-3)
    assert meter.window_s >= 8 * every_s


def test_window_of_few_updates_is_too_short():
    clock = VirtualClock(step_s=0.5)
    with Gauge(clock, 2.0).make_meter() as meter:
        meter.begin()
        clock.sleep(5.0)
        assert meter.end().faults[0].startswith("too short")


def test_charger_is_accepted_if_forced_and_covered_by_name():
    clock = VirtualClock(step_s=0.5)
    gauge = Gauge(clock, 2.0, charger="USB powered")
    with pytest.raises(UnavailableError, match="USB powered"):
        gauge.make_meter().open()
    meter = gauge.make_meter()
    meter.force()
    with meter:
        meter.begin()
        clock.sleep(30.0)
        assert meter.end().faults == ()
    assert meter.covers == "battery while charging"


def test_nothing_is_added_to_a_battery():
    meter = Gauge(VirtualClock(), 2.0).make_meter()
    meter.name = "battery"
    with pytest.raises(InputError, match="twice"):
        SumMeter([ModelledMeter(), meter])
