"""Batteries: slow updates, what Linux machines show, chargers, several batteries, faults."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_instruments import VirtualClock, VirtualContract, read_through
from virtual_sysfs import Battery, add_charger, write_files

from joulecast.meters import SumMeter, detect_meter
from joulecast.meters.base import UnavailableError
from joulecast.meters.battery import BatteryMeter, BatteryState, DischargeMeter
from joulecast.meters.modelled import ModelledMeter
from joulecast.system.errors import InputError, MeasurementError


class BatteryContract(VirtualContract):
    SHOWS = ("power", "voltage", "energy")
    EVERY_S = 2.0
    step_s, power_w, power_share = 0.25, 12.0, 0.02

    @pytest.fixture(autouse=True)
    def machine(self, set_clock, tmp_path):
        self.root = tmp_path
        self.battery = Battery(self.root, self.clock, self.SHOWS, every_s=self.EVERY_S)

    def make(self):
        return BatteryMeter(self.root)

    def test_window_fits_the_update_interval(self):
        with self.make_meter() as meter:
            assert meter.update_interval_s == pytest.approx(self.EVERY_S, abs=0.5)
            assert meter.window_s >= 9 * self.EVERY_S


class TestPower(BatteryContract):
    """A laptop with power_now, as most of them."""

    def test_power_before_the_window_does_not_count(self):
        with self.make_meter() as meter:
            self.battery.power_w = 40.0
            self.load(11.0)
            self.battery.power_w = 12.0
            assert self.read(meter).power_w == pytest.approx(12.0, rel=0.01)

    def test_charger_within_a_window_is_a_fault(self):
        plug, unplug = (partial(add_charger, self.root, online) for online in (1, 0))
        reading = self.read_through(10.0, plug, 3.0, unplug, 10.0)
        assert reading.faults == ("charging: AC is online",)

    def test_battery_that_shows_nothing_new_is_stuck(self):
        assert self.read_through(self.battery.stop, 40.0).faults[0].startswith("stuck")

    def test_vanished_battery_is_an_error(self):
        power = self.battery.folder / "power_now"
        with pytest.raises(MeasurementError, match="can no longer be read"):
            self.read_through(self.battery.stop, power.unlink, 1.0)


class TestCurrent(BatteryContract):
    """A board whose gauge shows a negative current while it discharges."""

    SHOWS = ("current", "voltage", "charge")


class TestEnergy(BatteryContract):
    """A gauge with a counter of energy alone, in steps of many seconds."""

    SHOWS = ("energy",)
    EVERY_S = 6.0

    def test_counter_that_rises_is_a_fault(self):
        charge = partial(setattr, self.battery, "left_j", self.battery.left_j + 5000.0)
        reading = self.read_through(20.0, charge, 40.0)
        assert reading.faults == ("reset: what is left in the battery rose",)


class TestCharge(BatteryContract):
    """A gauge with charge and voltage."""

    SHOWS = ("charge", "voltage")
    EVERY_S = 4.0


# -- what supplies the machine ------------------------------------------------------------------


@pytest.fixture
def clock(tmp_path, monkeypatch):
    monkeypatch.setattr("joulecast.meters.battery.SUPPLIES", tmp_path)
    return VirtualClock(step_s=0.25)


def open_meter(root, clock):
    return clock.drive(BatteryMeter(root))


def check_power(root, clock, power_w):
    with open_meter(root, clock) as meter:
        reading = read_through(clock, meter, meter.window_s)
    assert reading.power_w == pytest.approx(power_w, rel=0.02)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add_charger, "AC is online"),
        (lambda root: add_charger(root, 1, "ucsi-source-psy", "USB"), "ucsi-source-psy is online"),
        (lambda root: write_files(root / "BAT0", status="Charging"), "BAT0 is charging"),
        (lambda root: write_files(root / "BAT0", status="Not charging"), "BAT0: Not charging"),
        (lambda root: write_files(root / "BAT0", status="Full"), "BAT0: Full"),
    ],
)
def test_battery_that_does_not_discharge_is_refused(tmp_path, clock, change, reason):
    Battery(tmp_path, clock, ("power",))
    change(tmp_path)
    with pytest.raises(UnavailableError, match=reason) as caught:
        open_meter(tmp_path, clock).open()
    assert caught.value.advice == "unplug the charger"
    (row,) = detect_meter("battery")
    assert not row.available and reason in row.reason


def test_batteries_add_up_while_one_rests(tmp_path, clock):
    Battery(tmp_path, clock, ("power", "energy"))
    resting = Battery(tmp_path, clock, ("power", "energy"), name="BAT1", power_w=0.0)
    write_files(resting.folder, status="Not charging")
    check_power(tmp_path, clock, 12.0)
    resting.power_w = 5.0
    write_files(resting.folder, status="Discharging")
    check_power(tmp_path, clock, 17.0)


def test_peripherals_and_a_power_of_zero_are_ignored(tmp_path, clock):
    battery = Battery(tmp_path, clock, ("energy",))
    write_files(battery.folder, power_now=0)
    mouse = Battery(tmp_path, clock, ("power",), name="hidpp_battery_0")
    write_files(mouse.folder, scope="Device")
    check_power(tmp_path, clock, 12.0)


def test_machine_without_a_battery_is_explained(tmp_path, clock):
    add_charger(tmp_path)
    with pytest.raises(UnavailableError, match="no battery under"):
        open_meter(tmp_path, clock)
    Battery(tmp_path, clock, ())
    with pytest.raises(UnavailableError, match="BAT0 do not all show"):
        open_meter(tmp_path, clock)
    (row,) = detect_meter("battery")
    assert not row.available and row.advice


def test_detect_shows_the_power_also_of_a_gauge_without_updates(tmp_path, clock):
    Battery(tmp_path, clock, ("power",), every_s=1e6)
    (row,) = detect_meter("battery")
    assert (row.available, row.covers) == (True, "battery")
    assert row.idle_power_w == pytest.approx(12.0, rel=0.01)
    with pytest.raises(UnavailableError, match="no new number in 180 s"):
        open_meter(tmp_path, clock).open()


def test_batteries_that_differ_are_read_by_what_both_show(tmp_path, clock):
    Battery(tmp_path, clock, ("power", "energy"))
    other = Battery(tmp_path, clock, ("energy",), name="BAT1")
    check_power(tmp_path, clock, 24.0)
    (other.folder / "energy_now").unlink()
    clock.hooks.clear()
    (row,) = detect_meter("battery")
    assert not row.available and "BAT0 and BAT1" in row.reason


class Gauge:
    """A gauge that shows the mean power of the time since its last update."""

    def __init__(self, clock, every_s, charger=""):
        self.clock, self.every_s, self.charger = clock, every_s, charger

    def read(self):
        number = int(self.clock.now() / self.every_s)
        return BatteryState(self.charger, 5.0 + 0.001 * (number % 2))

    def make_meter(self, is_forced=False):
        return self.clock.drive(DischargeMeter("battery", self.read, "gauge", 0.5, is_forced))


@settings(max_examples=25)
@given(st.floats(0.6, 40.0), st.floats(0.0, 40.0))
def test_slow_updates_are_met_by_longer_windows(every_s, wait_s):
    clock = VirtualClock(step_s=0.5)
    with Gauge(clock, every_s).make_meter() as meter:
        clock.sleep(wait_s)
        reading = read_through(clock, meter, meter.window_s)
    assert (reading.faults, reading.power_w) == ((), pytest.approx(5.0, rel=1e-3))
    assert meter.window_s >= 8 * every_s


def test_window_of_few_updates_is_too_short_and_nothing_can_be_added():
    clock = VirtualClock(step_s=0.5)
    with Gauge(clock, 2.0).make_meter() as meter:
        assert read_through(clock, meter, 5.0).faults[0].startswith("too short")
    with pytest.raises(InputError, match="twice"):
        SumMeter([ModelledMeter(), meter])


def test_charger_is_accepted_if_forced_and_covered_by_name():
    clock = VirtualClock(step_s=0.5)
    gauge = Gauge(clock, 2.0, charger="USB powered")
    with pytest.raises(UnavailableError, match="USB powered"):
        gauge.make_meter().open()
    with gauge.make_meter(is_forced=True) as meter:
        assert read_through(clock, meter, 30.0).faults == ()
    assert meter.covers == "battery while charging"
