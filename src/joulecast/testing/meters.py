"""Test the contract of meters. Inherit the suite to test a new meter:

    class TestMyMeter(MeterContract):
        def make_meter(self):
            meter = MyMeter()
            meter.clock = self.clock
            return meter

        def load(self, duration_s):
            self.clock.sleep(duration_s)

``load`` runs a constant load for some seconds of the meter's clock. With a virtual clock, here
``self.clock``, the suite neither sleeps nor depends on other load.
"""

from __future__ import annotations

import math
import time

import pytest

from joulecast.meters.base import FAULTS, METER_CHECKS, OTHER_LOAD, Meter, Reading
from joulecast.records import PROVENANCES
from joulecast.system.errors import MeasurementError


class MeterContract:
    """Tests of any meter; a subclass makes the meter and runs the load.

    Attributes:
        tolerance_share: Largest relative difference between readings of the same load.
        needs_open: False for a meter that needs no ``open``.
    """

    tolerance_share = 0.02
    needs_open = True

    def make_meter(self) -> Meter:
        """Return a new meter that is not open."""
        raise NotImplementedError

    def load(self, duration_s: float) -> None:
        """Run a constant load for some seconds of the meter's clock."""
        time.sleep(duration_s)

    def read(self, meter: Meter, windows: float = 2.0) -> Reading:
        """Return a reading over ``windows`` times the meter's shortest window."""
        meter.begin()
        self.load(windows * meter.window_s)
        return meter.end()

    def test_meter_describes_itself(self) -> None:
        with self.make_meter() as meter:
            assert meter.name
            assert meter.covers
            assert meter.provenance in PROVENANCES
            assert 0 < meter.window_s < math.inf
            assert 0 <= meter.update_interval_s <= meter.window_s

    def test_constant_load_is_read_without_faults(self) -> None:
        with self.make_meter() as meter:
            reading = self.read(meter, 3.0)
            # A meter of counter updates may miss one interval at each end.
            slack_s = self.tolerance_share * 3 * meter.window_s + 2 * meter.update_interval_s
            assert abs(reading.duration_s - 3 * meter.window_s) <= slack_s
        assert 0 < reading.energy_j < math.inf
        assert reading.faults == ()
        assert set(reading.unchecked) <= set(METER_CHECKS)
        if reading.busy_share is None:
            assert OTHER_LOAD in reading.unchecked
        else:
            assert 0 <= reading.busy_share <= 1

    def test_faults_of_an_empty_window_have_known_names(self) -> None:
        with self.make_meter() as meter:
            meter.begin()
            empty = meter.end()
        assert 0 <= empty.energy_j < math.inf
        assert 0 <= empty.duration_s < math.inf
        assert all(fault.partition(":")[0] in FAULTS for fault in empty.faults)

    def test_windows_are_independent_and_energy_grows_with_them(self) -> None:
        with self.make_meter() as meter:
            once = self.read(meter)
            self.load(meter.window_s)
            again, twice = self.read(meter), self.read(meter, 4.0)
        self._check_same(again.energy_j, once.energy_j)
        self._check_same(twice.energy_j / twice.duration_s, once.energy_j / once.duration_s)
        assert twice.energy_j > 1.5 * once.energy_j

    def test_second_begin_restarts_the_window(self) -> None:
        with self.make_meter() as meter:
            plain = self.read(meter)
            meter.begin()
            self.load(3 * meter.window_s)
            again = self.read(meter)
        self._check_same(again.energy_j, plain.energy_j)

    def test_opening_and_closing_twice_is_allowed(self) -> None:
        meter = self.make_meter()
        meter.open()
        meter.open()
        first = self.read(meter)
        meter.begin()
        meter.close()
        meter.close()
        with pytest.raises(MeasurementError, match=r"\S"):
            meter.end()
        with meter:
            self._check_same(self.read(meter).energy_j, first.energy_j)

    def test_order_of_calls_is_checked(self) -> None:
        meter = self.make_meter()
        if self.needs_open:
            with pytest.raises(MeasurementError, match="open"):
                meter.begin()
        with meter:
            with pytest.raises(MeasurementError, match="begin"):
                meter.end()
            self.read(meter)
            with pytest.raises(MeasurementError, match="begin"):
                meter.end()

    def _check_same(self, value: float, expected: float) -> None:
        assert value == pytest.approx(expected, rel=self.tolerance_share)
