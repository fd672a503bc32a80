"""RAPL in a fake powercap folder: zones, wrapping around, permissions, faults."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_instruments import PowercapTree, VirtualClock, VirtualContract

from joulecast.meters.base import METER_CHECKS, UnavailableError
from joulecast.meters.rapl import RaplMeter, Zone, detect_rapl, find_zones, read_text
from joulecast.system.errors import MeasurementError

POWERS_W = {"intel-rapl:0": 60.0, "intel-rapl:1": 40.0, "intel-rapl:0:2": 5.0}


def make_tree(root, **kwargs):
    tree = PowercapTree(root, **kwargs)
    tree.add("intel-rapl:0", "package-0").add("intel-rapl:0:0", "core")
    tree.add("intel-rapl:0:2", "dram").add("intel-rapl:1", "package-1")
    tree.add("intel-rapl:2", "psys").add("intel-rapl-mmio:0", "package-0")
    (root / "dtpm").mkdir()
    return tree


class TestRaplMeter(VirtualContract):
    # A small range, so that nearly every window sees its counters wrap.
    RANGE_UJ = 150_000_000

    step_s = 0.1

    @pytest.fixture(autouse=True)
    def machine(self, set_clock, tmp_path):
        self.tree = make_tree(tmp_path, range_uj=self.RANGE_UJ)
        self.powers_w = dict.fromkeys(self.tree.zones, 500.0) | POWERS_W
        self.counts_uj = dict.fromkeys(self.tree.zones, 0.0)
        self.counted_s = self.clock.now()
        self.clock.hooks.append(self.count)

    def make_meter(self):
        return RaplMeter(
            self.tree.root,
            self.tree.root / "cpus",
            now=self.clock.now,
            ticker=self.clock.make_ticker,
        )

    def count(self):
        passed_s, self.counted_s = self.clock.now() - self.counted_s, self.clock.now()
        for folder, power_w in self.powers_w.items():
            self.counts_uj[folder] += power_w * passed_s * 1e6
            self.tree.set(folder, self.counts_uj[folder])

    def test_only_packages_and_memory_add_up(self):
        with self.make_meter() as meter:
            assert meter.covers == "cpu+dram"
            assert self.read(meter, 2.0).energy_j == pytest.approx(105.0, rel=1e-6)

    def test_counter_that_sticks_is_a_fault_unless_it_is_memory(self):
        with self.make_meter() as meter:
            self.read(meter)
            self.powers_w["intel-rapl:0:2"] = 0.0
            self.load(1.0)
            assert self.read(meter).faults == ()
            self.powers_w["intel-rapl:1"] = 0.0
            self.load(1.0)
            assert self.read(meter).faults == ("stuck: package-1 counted nothing in 1 s",)

    def test_counter_that_sticks_for_a_while_is_a_fault(self):
        with self.make_meter() as meter:
            meter.begin()
            self.load(3.0)
            self.powers_w["intel-rapl:0"] = 0.0
            self.load(1.5)
            self.powers_w["intel-rapl:0"] = 60.0
            self.load(0.5)
            assert meter.end().faults == ("stuck: package-0 counted nothing in 1 s",)

    def test_thermal_throttling_is_a_fault(self, tmp_path):
        count = tmp_path / "cpus/cpu0/thermal_throttle/package_throttle_count"
        count.parent.mkdir(parents=True)
        count.write_text("3\n")
        with self.make_meter() as meter:
            meter.begin()
            self.load(1.0)
            count.write_text("5\n")
            assert meter.end().faults == ("throttled: a processor was too hot 2 times",)

    def test_vanished_counter_is_an_error(self):
        with self.make_meter() as meter:
            meter.begin()
            self.tree.zones["intel-rapl:1"].unlink()
            with pytest.raises(MeasurementError, match="can no longer be read"):
                meter.end()


@given(st.lists(st.integers(0, 999), min_size=1), st.integers(0, 999))
def test_zone_corrects_for_wrapping_around(steps_uj, start_uj):
    counts = [start_uj, start_uj]
    for step_uj in steps_uj:
        counts.append((counts[-1] + step_uj) % 1000)
    told = iter(counts)
    files = {"name": "package-0", "max_energy_range_uj": "1000", "enabled": "1"}
    zone = Zone(PowercapPath(), lambda path: files.get(path) or str(next(told)))
    zone.start(0.0)
    for number in range(1, len(steps_uj) + 1):
        zone.update(0.05 * number)
    assert zone.energy_j == pytest.approx(sum(steps_uj) / 1e6)
    assert zone.fault == ""


class PowercapPath:
    """A folder without power limits."""

    def __truediv__(self, name):
        return name

    def glob(self, pattern):
        return ()


class Package:
    """A package of 80 W whose counter starts anew at given moments."""

    def __init__(self, root, clock, range_uj, starts_anew_at_s=()):
        self.tree = PowercapTree(root, range_uj=range_uj).add("intel-rapl:0", "package-0")
        self.clock, self.resets = clock, [clock.now() + after_s for after_s in starts_anew_at_s]
        self.count_uj, self.counted_s = 5e9, clock.now()
        self.count()
        clock.hooks.append(self.count)

    def count(self):
        passed_s, self.counted_s = self.clock.now() - self.counted_s, self.clock.now()
        self.count_uj += 80e6 * passed_s
        if self.resets and self.clock.now() >= self.resets[0]:
            self.resets.pop(0)
            self.count_uj = 0.0
        self.tree.set("intel-rapl:0", self.count_uj)


# The range of common processors.
RANGE_UJ = 65_532_610_987


def read_package(root, window_s, starts_anew_at_s):
    clock = VirtualClock(step_s=0.5)
    Package(root, clock, RANGE_UJ, starts_anew_at_s)
    with RaplMeter(root, root, now=clock.now, ticker=clock.make_ticker) as meter:
        meter.begin()
        clock.sleep(window_s)
        return meter.end()


@pytest.mark.parametrize("window_s", [1.0, 60.0])
@pytest.mark.parametrize("share", [0.3, 0.97])
def test_counter_that_starts_anew_is_a_fault_however_long_the_window(tmp_path, window_s, share):
    """Taken for wrapping around, it would add 65 kJ, 14 times the energy of a minute."""
    reading = read_package(tmp_path, window_s, [share * window_s])
    assert reading.faults == ("reset: the counter of package-0 started anew",)
    assert read_package(tmp_path / "calm", window_s, []).faults == ()


def test_power_limit_is_read_in_every_window(tmp_path):
    clock = VirtualClock(step_s=0.25)
    tree = Package(tmp_path, clock, RANGE_UJ).tree

    def read(*limits_w, enabled=1):
        tree.set_limit("intel-rapl:0", *limits_w, enabled=enabled)
        meter.begin()
        clock.sleep(1.0)
        reading = meter.end()
        return reading.faults, reading.unchecked

    with RaplMeter(tmp_path, tmp_path, now=clock.now, ticker=clock.make_ticker) as meter:
        assert read() == ((), METER_CHECKS)
        known = ("other load", "second sensor")
        assert read(60.0, 70.0) == ((), known), "80 W is less than a quarter above 70 W"
        fault = "implausible: package-0 seems to draw 80 W, more than 50 W"
        assert read(30.0, 40.0) == ((fault,), known)
        assert read(30.0, 40.0, enabled=0) == ((), METER_CHECKS)


def test_earlier_window_does_not_spoil_the_next(tmp_path):
    clock = VirtualClock(step_s=0.25)
    package = Package(tmp_path, clock, RANGE_UJ)
    with RaplMeter(tmp_path, tmp_path, now=clock.now, ticker=clock.make_ticker) as meter:
        meter.begin()
        package.count_uj = 0.0
        clock.sleep(1.0)
        assert meter.end().faults
        package.count_uj = 0.0
        clock.sleep(5.0)
        meter.begin()
        clock.sleep(1.0)
        reading = meter.end()
    assert (reading.faults, reading.energy_j) == ((), pytest.approx(80.0))


def deny(denied):
    def read(path):
        if path.name == "energy_uj" and denied in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_text(path)

    return read


def test_counters_that_cannot_be_read_are_explained(tmp_path):
    tree = make_tree(tmp_path)
    assert RaplMeter(tmp_path, read=deny("intel-rapl:0:2")).covers == "cpu"
    with pytest.raises(UnavailableError, match="no permission") as caught:
        find_zones(tmp_path, deny("intel-rapl:1"))
    assert "chmod a+r" in caught.value.advice
    assert "sudo" not in str(caught.value)
    tree.zones["intel-rapl:0"].write_text("many\n")
    with pytest.raises(UnavailableError, match="cannot be read"):
        find_zones(tmp_path)


def test_detect_shows_the_current_power_or_why_there_is_none(tmp_path):
    (row,) = detect_rapl(tmp_path)
    assert (row.available, bool(row.advice)) == (False, True)
    assert str(tmp_path) in row.reason
    tree = make_tree(tmp_path)
    (row,) = detect_rapl(tmp_path, lambda seconds: tree.set("intel-rapl:0", 7_000_000))
    assert (row.name, row.available, row.covers, row.advice) == ("rapl", True, "cpu+dram", "")
    assert row.idle_power_w > 0
