"""RAPL in a fake powercap folder: zones, wrapping around, permissions, faults."""

from functools import partial
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_instruments import VirtualClock, VirtualContract, read_through
from virtual_sysfs import PowercapTree, write_files

from joulecast.meters import detect_meter, rapl
from joulecast.meters.base import METER_CHECKS, UnavailableError
from joulecast.meters.rapl import RaplMeter, Zone, find_zones
from joulecast.system.errors import MeasurementError


def make_tree(root, **kwargs):
    tree = PowercapTree(root, **kwargs)
    tree.add("intel-rapl:0", "package-0", 60.0).add("intel-rapl:0:0", "core", 500.0)
    tree.add("intel-rapl:0:2", "dram", 5.0).add("intel-rapl:1", "package-1", 40.0)
    tree.add("intel-rapl:2", "psys", 500.0).add("intel-rapl-mmio:0", "package-0", 500.0)
    (root / "dtpm").mkdir()
    return tree


class TestRaplMeter(VirtualContract):
    """Two packages and memory; neither cores, nor the board, nor a package that is shown twice."""

    step_s, power_w = 0.1, 105.0

    @pytest.fixture(autouse=True)
    def machine(self, set_clock, tmp_path):
        # A small range, so that nearly every window sees its counters wrap.
        self.tree = make_tree(tmp_path, range_uj=150_000_000).follow(self.clock)

    def make(self):
        return RaplMeter(self.tree.root, self.tree.root / "cpus")

    def set_power(self, folder, power_w):
        return partial(self.tree.powers_w.update, {folder: power_w})

    def test_counter_that_sticks_is_a_fault_unless_it_is_memory(self):
        self.tree.powers_w["intel-rapl:0:2"] = 0.0
        assert self.read_through(1.0).faults == ()
        stop, go_on = (self.set_power("intel-rapl:0", power_w) for power_w in (0.0, 60.0))
        fault = ("stuck: package-0 counted nothing in 1 s",)
        assert self.read_through(3.0, stop, 1.5, go_on, 0.5).faults == fault
        assert self.read_through(stop, 1.0).faults == fault

    def test_thermal_throttling_is_a_fault(self, tmp_path):
        folder = tmp_path / "cpus/cpu0/thermal_throttle"
        write_files(folder, package_throttle_count=3)
        throttle = partial(write_files, folder, package_throttle_count=5)
        fault = "throttled: a processor was too hot 2 times"
        assert self.read_through(1.0, throttle).faults == (fault,)

    def test_vanished_counter_is_an_error(self):
        with pytest.raises(MeasurementError, match="can no longer be read"):
            self.read_through((self.tree.root / "intel-rapl:1/energy_uj").unlink)


class PowercapPath:
    """A folder without power limits."""

    def __truediv__(self, name):
        return name

    def glob(self, pattern):
        return ()


@given(st.lists(st.integers(0, 999), min_size=1), st.integers(0, 999))
def test_zone_corrects_for_wrapping_around(steps_uj, start_uj):
    counts = accumulate([start_uj, 0, *steps_uj], lambda count, step: (count + step) % 1000)
    files = {"name": "package-0", "max_energy_range_uj": "1000", "enabled": "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rapl, "_read", lambda path: files.get(path) or str(next(counts)))
        zone = Zone(PowercapPath())
        zone.start(0.0)
        for number in range(1, len(steps_uj) + 1):
            zone.update(0.05 * number)
    assert (zone.energy_j, zone.fault) == (pytest.approx(sum(steps_uj) / 1e6), "")


@pytest.fixture
def clock():
    return VirtualClock(step_s=0.25)


@pytest.fixture
def package(tmp_path, clock):
    """Return a package of 80 W with the range of common processors."""
    tree = PowercapTree(tmp_path, range_uj=65_532_610_987).add("intel-rapl:0", "package-0", 80.0)
    return tree.set("intel-rapl:0", 5e9).follow(clock)


@pytest.mark.parametrize("window_s", [1.0, 60.0])
@pytest.mark.parametrize("share", [0.3, 0.97])
def test_counter_that_starts_anew_is_a_fault_of_its_window(package, clock, window_s, share):
    """Taken for wrapping around, it would add 65 kJ, 14 times the energy of a minute."""
    restart = partial(package.set, "intel-rapl:0", 0.0)
    with clock.drive(RaplMeter(package.root)) as meter:
        parts_s = (share * window_s, (1 - share) * window_s)
        assert read_through(clock, meter, *parts_s).faults == ()
        reading = read_through(clock, meter, parts_s[0], restart, parts_s[1])
        assert reading.faults == ("reset: the counter of package-0 started anew",)
        restart()
        clock.sleep(5.0)
        reading = read_through(clock, meter, 1.0)
    assert (reading.faults, reading.energy_j) == ((), pytest.approx(80.0))


def test_power_limit_is_read_in_every_window(package, clock):
    known = ("other load", "second sensor")
    fault = "implausible: package-0 seems to draw 80 W, more than 50 W"
    with clock.drive(RaplMeter(package.root)) as meter:
        for limits_w, enabled, faults, unchecked in [
            ((), 1, (), METER_CHECKS),
            # 80 W is less than a quarter above 70 W.
            ((60, 70), 1, (), known),
            ((30, 40), 1, (fault,), known),
            ((30, 40), 0, (), METER_CHECKS),
        ]:
            limits = {f"constraint_{n}_power_limit_uw": w * 10**6 for n, w in enumerate(limits_w)}
            write_files(package.root / "intel-rapl:0", enabled=enabled, **limits)
            reading = read_through(clock, meter, 1.0)
            assert (reading.faults, reading.unchecked) == (faults, unchecked)


def test_counters_that_cannot_be_read_are_explained(tmp_path, monkeypatch):
    make_tree(tmp_path)

    def deny(denied):
        def read(path):
            if path.match(f"*{denied}/energy_uj"):
                raise PermissionError(13, "Permission denied", str(path))
            return path.read_text().strip()

        monkeypatch.setattr(rapl, "_read", read)

    deny("intel-rapl:0:2")
    assert RaplMeter(tmp_path).covers == "cpu"
    deny("intel-rapl:1")
    with pytest.raises(UnavailableError, match="Permission denied") as caught:
        find_zones(tmp_path)
    assert "chmod a+r" in caught.value.advice and "sudo" not in str(caught.value)
    write_files(tmp_path / "intel-rapl:0", energy_uj="many")
    with pytest.raises(UnavailableError, match="cannot be read"):
        find_zones(tmp_path)


def test_detect_shows_the_current_power_or_why_there_is_none(tmp_path, monkeypatch, clock):
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path)
    (row,) = detect_meter("rapl")
    assert not row.available and row.advice and str(tmp_path) in row.reason
    make_tree(tmp_path).follow(clock)
    monkeypatch.setattr(RaplMeter, "clock", clock)
    (row,) = detect_meter("rapl")
    assert (row.name, row.available, row.covers, row.advice) == ("rapl", True, "cpu+dram", "")
    assert row.idle_power_w == pytest.approx(105.0)
