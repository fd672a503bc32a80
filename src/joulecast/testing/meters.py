"""What every meter has to keep to, as tests for anybody who writes one.

    class TestMyMeter(MeterContract):
        def make_meter(self):
            return MyMeter(now=self.clock.now)

        def load(self, duration_s):
            self.clock.sleep(duration_s)

``load`` keeps a CONSTANT load for some seconds of the meter's own clock. Give the meter a virtual
clock where it takes one: the suite then neither sleeps nor depends on what else the machine does.
"""

from __future__ import annotations

import math
import time

import pytest

from joulecast.errors import MeasurementError
from joulecast.meters.base import FAULTS, Meter, Reading
from joulecast.records import PROVENANCES


class MeterContract:
    """Subclass it as ``Test…`` and override the two hooks.

    Attributes:
        tolerance_share: How far readings of the same load may lie apart.
        needs_open: False for a meter that can begin without being opened.
    """

    tolerance_share = 0.02
    needs_open = True

    def make_meter(self) -> Meter:
        """A new meter, not yet open."""
        raise NotImplementedError

    def load(self, duration_s: float) -> None:
        """Keep the same load for some seconds of the meter's clock."""
        time.sleep(duration_s)

    def read(self, meter: Meter, windows: float = 2.0) -> Reading:
        """A reading over so many of the meter's shortest windows."""
        meter.begin()
        self.load(windows * meter.window_s)
        return meter.end()

    def test_it_says_what_it_is(self) -> None:
        with self.make_meter() as meter:
            assert meter.name
            assert meter.covers
            assert meter.provenance in PROVENANCES
            assert 0 < meter.window_s < math.inf
            assert 0 <= meter.period_s <= meter.window_s

    def test_a_reading_is_finite_and_positive_under_load(self) -> None:
        with self.make_meter() as meter:
            reading = self.read(meter)
        assert 0 < reading.energy_j < math.inf
        assert 0 < reading.duration_s < math.inf

    def test_a_constant_load_has_no_faults(self) -> None:
        with self.make_meter() as meter:
            assert self.read(meter).faults == ()

    def test_faults_go_by_their_names(self) -> None:
        with self.make_meter() as meter:
            meter.begin()
            hasty = meter.end()
        assert 0 <= hasty.energy_j < math.inf
        assert 0 <= hasty.duration_s < math.inf
        assert all(fault.partition(":")[0] in FAULTS for fault in hasty.faults)

    def test_the_duration_is_the_window(self) -> None:
        with self.make_meter() as meter:
            reading = self.read(meter, 3.0)
            # An edge-to-edge meter may leave out a period at each end.
            slack_s = self.tolerance_share * 3 * meter.window_s + 2 * meter.period_s
            assert abs(reading.duration_s - 3 * meter.window_s) <= slack_s

    def test_energy_grows_with_the_window(self) -> None:
        with self.make_meter() as meter:
            once, twice = self.read(meter, 2.0), self.read(meter, 4.0)
        self._check_same(twice.energy_j / twice.duration_s, once.energy_j / once.duration_s)
        assert twice.energy_j > 1.5 * once.energy_j

    def test_windows_do_not_know_each_other(self) -> None:
        with self.make_meter() as meter:
            first = self.read(meter)
            self.load(meter.window_s)
            second = self.read(meter)
        self._check_same(second.energy_j, first.energy_j)

    def test_a_window_can_be_begun_anew(self) -> None:
        with self.make_meter() as meter:
            plain = self.read(meter)
            meter.begin()
            self.load(3 * meter.window_s)
            again = self.read(meter)
        self._check_same(again.energy_j, plain.energy_j)

    def test_opening_and_closing_twice_does_no_harm(self) -> None:
        meter = self.make_meter()
        meter.open()
        meter.open()
        first = self.read(meter)
        meter.close()
        meter.close()
        with meter:
            self._check_same(self.read(meter).energy_j, first.energy_j)

    def test_it_can_be_closed_within_a_window(self) -> None:
        meter = self.make_meter()
        meter.open()
        meter.begin()
        meter.close()
        with pytest.raises(MeasurementError, match=r"\S"):
            meter.end()

    def test_beginning_needs_an_open_meter(self) -> None:
        if not self.needs_open:
            pytest.skip("this meter needs no opening")
        with pytest.raises(MeasurementError, match="open"):
            self.make_meter().begin()

    def test_ending_needs_a_begun_window(self) -> None:
        with self.make_meter() as meter:
            with pytest.raises(MeasurementError, match="begin"):
                meter.end()
            self.read(meter)
            with pytest.raises(MeasurementError, match="begin"):
                meter.end()

    def _check_same(self, value: float, expected: float) -> None:
        assert value == pytest.approx(expected, rel=self.tolerance_share)
