"""RAPL in a fake powercap folder: zones, wrapping around, permissions, faults."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_instruments import PowercapTree, VirtualClock

from joulecast.errors import MeasurementError, MissingError
from joulecast.meters import make_meter
from joulecast.meters.base import UnavailableError
from joulecast.meters.rapl import RaplMeter, Zone, detect_rapl, find_zones, read_text
from joulecast.testing.meters import MeterContract

POWERS_W = {"intel-rapl:0": 60.0, "intel-rapl:1": 40.0, "intel-rapl:0:2": 5.0}


def make_tree(root, **kwargs):
    tree = PowercapTree(root, **kwargs)
    tree.add("intel-rapl:0", "package-0").add("intel-rapl:0:0", "core")
    tree.add("intel-rapl:0:2", "dram").add("intel-rapl:1", "package-1")
    tree.add("intel-rapl:2", "psys").add("intel-rapl-mmio:0", "package-0")
    (root / "dtpm").mkdir()
    return tree


class TestRaplMeter(MeterContract):
    # A small range, so that nearly every window sees its counters wrap.
    RANGE_UJ = 150_000_000

    @pytest.fixture(autouse=True)
    def machine(self, tmp_path):
        self.clock = VirtualClock()
        self.tree = make_tree(tmp_path, range_uj=self.RANGE_UJ)
        self.powers_w = dict.fromkeys(self.tree.zones, 500.0) | POWERS_W
        self.load(0.0)

    def make_meter(self):
        return RaplMeter(
            self.tree.root,
            self.tree.root / "cpus",
            now=self.clock.now,
            ticker=self.clock.make_ticker,
        )

    def load(self, duration_s):
        self.clock.sleep(duration_s)
        for folder, power_w in self.powers_w.items():
            self.tree.set(folder, power_w * self.clock.now() * 1e6)

    def test_only_packages_and_memory_add_up(self):
        with self.make_meter() as meter:
            assert meter.covers == "cpu+dram"
            assert self.read(meter, 2.0).energy_j == pytest.approx(105.0, rel=1e-6)

    def test_constant_counter_is_stuck(self):
        with self.make_meter() as meter:
            self.read(meter)
            self.powers_w["intel-rapl:1"] = 0.0
            self.load(1.0)
            assert self.read(meter).faults == ("stuck: package-1 counted nothing in 1 s",)

    def test_constant_memory_counter_is_not_a_fault(self):
        with self.make_meter() as meter:
            self.powers_w["intel-rapl:0:2"] = 0.0
            self.load(1.0)
            assert self.read(meter).faults == ()

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


def test_counter_may_wrap_around_many_times(tmp_path):
    clock = VirtualClock(step_s=1.0)
    tree = PowercapTree(tmp_path, range_uj=3_000_000_000).add("intel-rapl:0", "package-0")
    clock.hooks.append(lambda: tree.set("intel-rapl:0", 100e6 * clock.now()))
    tree.set("intel-rapl:0", 100e6 * clock.now())
    with RaplMeter(tmp_path, tmp_path, now=clock.now, ticker=clock.make_ticker) as meter:
        meter.begin()
        clock.sleep(100.0)
        reading = meter.end()
    assert reading.energy_j == pytest.approx(10_000.0, rel=1e-6)
    assert reading.faults == ()


@given(st.lists(st.integers(0, 999), min_size=1), st.integers(0, 999))
def test_zone_corrects_for_wrapping_around(steps_uj, start_uj):
    counts = [start_uj]
    for step_uj in steps_uj:
        counts.append((counts[-1] + step_uj) % 1000)
    told = iter(counts)
    files = {"name": lambda: "package-0", "max_energy_range_uj": lambda: "1000"}
    zone = Zone(PowercapPath(), lambda path: files.get(path, lambda: str(next(told)))())
    energies = [zone.energy_j() for _ in steps_uj]
    assert energies[-1] == pytest.approx(sum(steps_uj) / 1e6)


class PowercapPath:
    def __truediv__(self, name):
        return name


def test_reset_counter_is_a_fault(tmp_path):
    clock = VirtualClock()
    tree = PowercapTree(tmp_path).add("intel-rapl:0", "package-0", 5_000_000)
    with RaplMeter(tmp_path, tmp_path, now=clock.now, ticker=clock.make_ticker) as meter:
        meter.begin()
        clock.sleep(1.0)
        tree.set("intel-rapl:0", 1_000_000)
        (fault,) = meter.end().faults
    assert fault.startswith("reset: package-0")


def test_coverage_without_memory_counters(tmp_path):
    PowercapTree(tmp_path).add("intel-rapl:0", "package-0").add("intel-rapl:0:0", "core")
    assert RaplMeter(tmp_path).covers == "cpu"


def deny(denied):
    def read(path):
        if path.name == "energy_uj" and denied in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_text(path)

    return read


def test_missing_permission_has_advice(tmp_path):
    make_tree(tmp_path)
    with pytest.raises(UnavailableError, match="no permission") as caught:
        find_zones(tmp_path, deny("intel-rapl:1"))
    assert "chmod a+r" in caught.value.advice
    assert "sudo" not in str(caught.value)


def test_unreadable_memory_counter_is_ignored(tmp_path):
    make_tree(tmp_path)
    assert RaplMeter(tmp_path, read=deny("intel-rapl:0:2")).covers == "cpu"


def test_damaged_tree_is_unavailable(tmp_path):
    tree = PowercapTree(tmp_path).add("intel-rapl:0", "package-0")
    tree.zones["intel-rapl:0"].write_text("many\n")
    with pytest.raises(UnavailableError, match="cannot be read"):
        find_zones(tmp_path)


def test_detect_shows_the_current_power(tmp_path):
    tree = make_tree(tmp_path)
    (row,) = detect_rapl(tmp_path, lambda seconds: tree.set("intel-rapl:0", 7_000_000))
    assert (row.name, row.available, row.covers) == ("rapl", True, "cpu+dram")
    assert row.idle_power_w > 0
    assert row.advice == ""


def test_detect_explains_a_missing_counter(tmp_path):
    (row,) = detect_rapl(tmp_path)
    assert not row.available
    assert str(tmp_path) in row.reason
    assert row.advice
    with pytest.raises(MissingError, match="no RAPL packages"):
        make_meter(f"rapl:{tmp_path}")
