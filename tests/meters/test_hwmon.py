"""Meters of hwmon sensors: rails, boards, single chips, counters of GPUs, sums, faults."""

from functools import partial

import pytest
import virtual_sysfs
from virtual_instruments import VirtualContract
from virtual_sysfs import Sysfs, write_files

from joulecast.meters import detect_meter, hwmon, make_meter, rapl
from joulecast.meters.hwmon import find_board_input, find_rails
from joulecast.system.errors import InputError, MeasurementError, MissingError


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return a /sys and a /proc, which meters read."""
    tree = Sysfs(tmp_path)
    monkeypatch.setattr(hwmon, "SYSTEM", tree.system)
    monkeypatch.setattr(hwmon, "PROC", tree.proc)
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "none")
    return tree


class HwmonContract(VirtualContract):
    @pytest.fixture(autouse=True)
    def machine(self, set_clock, tree):
        self.tree = tree
        self.add()

    def make(self):
        return make_meter("hwmon")


class TestBoard(HwmonContract):
    """A Jetson AGX Orin: three parallel rails of 5 V x 1 A, of which one supplies the memory."""

    power_w = 15.0

    def add(self):
        virtual_sysfs.add_agx_orin(self.tree)
        self.current = self.tree.system / "class/hwmon/hwmon0/curr1_input"

    def test_power_may_vary_within_a_window(self):
        reading = self.read_through(2.0, partial(self.current.write_text, "3000\n"), 2.0)
        assert reading.energy_j == pytest.approx(15.0 * 4 + 10.0 * 2, rel=0.01)

    def test_offset_of_an_idle_rail_is_no_fault(self):
        """Sensors of idle rails show slightly negative powers, as VDD_GPU of a Thor does."""
        self.current.write_text("-80\n")
        reading = self.read_through(2.0)
        assert (reading.faults, reading.power_w) == ((), pytest.approx(9.6))

    def test_vanished_sensor_is_an_error(self):
        with pytest.raises(MeasurementError, match="can no longer be read"):
            self.read_through(self.current.unlink, 1.0)


class TestSlowChip(HwmonContract):
    """An INA226 that averages over 1.1 s."""

    step_s, power_w = 0.1, 7.5

    def add(self):
        virtual_sysfs.add_ina226(self.tree, update_interval=1100)

    def test_window_fits_the_update_interval(self):
        with self.make_meter() as meter:
            assert (meter.update_interval_s, meter.window_s) == (1.1, pytest.approx(22.0))


class TestIntelGpu(HwmonContract):
    """A card of 60 W, whose package is a part of it."""

    step_s, power_w = 0.25, 60.0

    def add(self):
        self.chip = virtual_sysfs.add_intel_gpu(self.tree, energy2_input=0)
        self.restart()
        self.clock.hooks.append(self.count)

    def restart(self):
        self.start_s = self.clock.now()

    def count(self):
        energy_uj = 60e6 * (self.clock.now() - self.start_s)
        write_files(self.chip, energy1_input=round(energy_uj))

    def test_counter_that_starts_anew_is_a_fault(self):
        self.clock.step_s = 1.0
        self.load(60.0)
        reading = self.read_through(15.0, self.restart, 300.0)
        assert reading.faults == ("reset: the energy counter fell",)

    def test_constant_counter_is_stuck(self):
        self.clock.hooks.clear()
        assert self.read_through(2.0).faults[0].startswith("stuck")


# -- choosing rails -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("add", "rails", "power_w", "covers"),
    [
        (virtual_sysfs.add_tx2, "VDD_IN", 7.0, "module"),
        (virtual_sysfs.add_agx_xavier, "GPU CPU SOC CV VDDRQ SYS5V", 30.0, "module rails"),
        (virtual_sysfs.add_xavier_nx, "VDD_IN", 5.0, "module"),
        (virtual_sysfs.add_agx_orin, "VDD_GPU_SOC VDD_CPU_CV VIN_SYS_5V0", 15.0, "module rails"),
        (virtual_sysfs.add_orin_nano, "VDD_IN", 5.0, "module"),
        (virtual_sysfs.add_thor, "VIN", 23.0, "board"),
    ],
)
def test_input_of_a_board_is_measured(tree, add, rails, power_w, covers):
    add(tree)
    meter = make_meter("hwmon")
    assert (meter.read_power_w(), meter.covers) == (pytest.approx(power_w), covers)
    assert (" ".join(rail.name for rail in meter.measured), meter.covers_machine) == (rails, True)


def test_naming_the_input_rail_is_the_same_meter(tree):
    virtual_sysfs.add_orin_nano(tree)
    assert make_meter("hwmon:VDD_IN").covers == "module"
    assert make_meter("hwmon:VDD_SOC").covers == "rail VDD_SOC"
    with pytest.raises(InputError, match="VDD_IN, VDD_CPU_GPU_CV, VDD_SOC"):
        make_meter("hwmon:VDD_OUT")


def test_unknown_board_with_several_sensors_asks_which(tree):
    virtual_sysfs.add_ina226(tree)
    virtual_sysfs.add_ina226(tree, "1-0046")
    with pytest.raises(MissingError, match="hwmon:ina226-1-0045, hwmon:ina226-1-0046"):
        make_meter("hwmon")


def test_detect_lists_the_board_and_its_rails(tree):
    virtual_sysfs.add_agx_orin(tree)
    rows = detect_meter("hwmon")
    rails = ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"]
    assert [row.name for row in rows] == ["hwmon", *(f"hwmon:{rail}" for rail in rails)]
    assert rows[0].reason == "Jetson AGX Orin: VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0"
    assert rows[0].idle_power_w == pytest.approx(15.0)


def test_detect_explains_missing_and_damaged_sensors(tree):
    (row,) = detect_meter("hwmon")
    assert not row.available and "ina3221" in row.advice
    virtual_sysfs.add_ina226(tree, power_uw="many")
    (row,) = detect_meter("hwmon")
    assert not row.available


# -- sums and the automatic choice --------------------------------------------------------------


@pytest.mark.parametrize(
    ("add", "text"),
    [
        (virtual_sysfs.add_orin_nano, "hwmon+hwmon:VDD_SOC"),
        (virtual_sysfs.add_orin_nano, "hwmon:VDD_IN+hwmon:VDD_SOC"),
        (virtual_sysfs.add_orin_nano, "hwmon+hwmon"),
        (virtual_sysfs.add_agx_orin, "hwmon+hwmon:VDDQ_VDD2_1V8AO"),
        (virtual_sysfs.add_agx_orin, "hwmon:VIN_SYS_5V0+hwmon:VDDQ_VDD2_1V8AO"),
        (virtual_sysfs.add_thor, "hwmon:VIN+hwmon:VDD_GPU"),
        (virtual_sysfs.add_orin_nano, "hwmon+modelled"),
        (virtual_sysfs.add_orin_nano, "modelled+hwmon"),
    ],
)
def test_nothing_is_counted_twice(tree, add, text):
    add(tree)
    with pytest.raises(InputError, match="twice"):
        make_meter(text)


def test_parallel_rails_can_be_added(tree):
    virtual_sysfs.add_tx2(tree)
    assert make_meter("hwmon+hwmon:VDD_MUX").covers == "module+rail VDD_MUX"
    covers = make_meter("hwmon:VDD_SYS_GPU+hwmon:VDD_SYS_CPU").covers
    assert covers == "rail VDD_SYS_GPU+rail VDD_SYS_CPU"


def test_auto_measures_a_jetson_by_its_input_and_ignores_unknown_sensors(tree):
    virtual_sysfs.add_intel_gpu(tree)
    assert make_meter("auto").name != "hwmon"
    virtual_sysfs.add_orin_nano(tree)
    assert make_meter("auto", on="cpu").covers == make_meter("auto", on="cuda:0").covers == "module"


# -- rails of chips -----------------------------------------------------------------------------


def test_thor_on_a_carrier_board_without_its_sensor(tree):
    virtual_sysfs.add_thor(tree)
    (tree.system / "class/hwmon/hwmon1/name").write_text("other\n")
    found = find_board_input(find_rails(tree.system), tree.proc)
    assert found.rails == ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0")
    tree.set_soc("raspberrypi,4-model-b\0brcm,bcm2711\0")
    assert find_board_input(find_rails(tree.system), tree.proc) is None


def add_all_chips(tree):
    for name in ("ina219", "ina226", "ina238", "ina260", "coretemp", "ucsi_source_psy_1"):
        tree.add_chip(name, f"1-00{name[-2:]}", power1_input=1000000)


def add_equal_labels(tree):
    tree.add_ina3221("1-0040", ["VDD", "A"])
    tree.add_ina3221("1-0041", ["VDD", "B"])


def add_tiles(tree):
    virtual_sysfs.add_intel_gpu(tree, "i915")
    virtual_sysfs.add_intel_gpu(tree, "i915_gt0")


@pytest.mark.parametrize(
    ("add", "names"),
    [
        # Channels that are not connected, or off.
        (lambda tree: tree.add_ina3221("1-0040", ["NC", "A", "B"], in3_enable=0), "A"),
        (add_all_chips, "ina219-1-0019 ina226-1-0026 ina238-1-0038 ina260-1-0060"),
        (add_equal_labels, "VDD-1-0040 A VDD-1-0041 B"),
        (lambda tree: (tree.add_ina3221("1", ["A"]) / "in1_label").unlink(), "channel1"),
        # Tiles of a GPU are part of its card.
        (add_tiles, "i915-0000:03:00.0"),
    ],
)
def test_rails_have_names_of_their_own(tree, add, names):
    add(tree)
    assert [rail.name for rail in find_rails(tree.system)] == names.split()


@pytest.mark.parametrize(
    ("chip", "files", "covers", "read", "unit"),
    [
        # Power is voltage times current without a power register.
        ("ina219", {"in1_input": 5, "curr1_input": 8}, "rail", "in1_input curr1_input", "W"),
        # The card of an Intel GPU includes its package.
        ("xe", {"energy1_input": 0, "energy2_input": 0}, "gpu", "energy1_input", "J"),
        ("xe", {"energy1_input": "", "energy2_input": 0}, "gpu package", "energy2_input", "J"),
    ],
)
def test_rail_reads_the_best_files_of_its_chip(tree, chip, files, covers, read, unit):
    folder = tree.add_chip(chip, "0000:03:00.0", update_interval=2253, **files)
    (rail,) = find_rails(tree.system)
    assert rail.paths == tuple(folder / file for file in read.split())
    assert (rail.name, rail.unit) == (f"{chip}-0000:03:00.0", unit)
    assert rail.covers == (f"rail {rail.name}" if covers == "rail" else covers)
    assert rail.update_interval_s == pytest.approx(2.253 if unit == "W" else 0.001)
