"""The modelled meter: CPU time x watts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_instruments import VirtualClock, VirtualContract

from joulecast.meters import make_meter
from joulecast.meters.modelled import CORE_W, ModelledMeter, cpu_time_s, detect_modelled


class TestModelledMeter(VirtualContract):
    def make_meter(self):
        return ModelledMeter(8.0, 1.0, now=self.clock.now, cpu_time=lambda: 2 * self.clock.now())


@given(st.floats(0.1, 500), st.floats(0, 100), st.floats(0, 64), st.floats(0.1, 100))
def test_energy_is_busy_time_plus_idle_time(power_w, idle_w, cores, window_s):
    clock = VirtualClock(0.0)
    meter = ModelledMeter(power_w, idle_w, clock.now, lambda: cores * clock.now())
    with meter:
        meter.begin()
        clock.time_s = window_s
        reading = meter.end()
    assert reading.energy_j == pytest.approx((cores * power_w + idle_w) * window_s)
    assert reading.duration_s == window_s
    assert reading.faults == ()


def test_work_of_this_process_counts():
    with ModelledMeter() as meter:
        meter.begin()
        begin_s = cpu_time_s()
        while cpu_time_s() == begin_s:
            pass
        assert meter.end().energy_j > 0


def test_provenance_is_modelled():
    (row,) = detect_modelled()
    assert row.available
    assert row.provenance == ModelledMeter().provenance == "modelled"
    assert "not measured" in row.reason


def test_watts_are_parsed_and_part_of_what_is_covered():
    for text, power_w in (("", CORE_W), (":65W", 65.0), (":2.5", 2.5), (":800mW", 0.8)):
        meter = make_meter(f"modelled{text}")
        assert meter.power_w == pytest.approx(power_w)
        assert meter.covers == f"cpu at {power_w:g} W a core"
    assert ModelledMeter(8.0, 1.5).covers == "cpu at 8 W a core and 1.5 W always"
