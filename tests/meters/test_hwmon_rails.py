"""Rails of chips and boards: which there are, which of them supplies the board."""

import pytest
import virtual_sysfs
from virtual_sysfs import Sysfs

from joulecast.meters.hwmon import find_board_input, find_rails, list_parts


@pytest.fixture
def tree(tmp_path):
    return Sysfs(tmp_path)


def list_names(tree):
    return [rail.name for rail in find_rails(tree.system)]


@pytest.mark.parametrize(
    ("add", "rails", "covers"),
    [
        (virtual_sysfs.add_tx2, ("VDD_IN",), "module"),
        (virtual_sysfs.add_xavier_nx, ("VDD_IN",), "module"),
        (
            virtual_sysfs.add_agx_xavier,
            ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),
            "module rails",
        ),
        (virtual_sysfs.add_orin_nano, ("VDD_IN",), "module"),
        (
            virtual_sysfs.add_agx_orin,
            ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
            "module rails",
        ),
        (virtual_sysfs.add_thor, ("VIN",), "board"),
    ],
)
def test_input_rails_of_jetson_boards(tree, add, rails, covers):
    add(tree)
    found = find_board_input(find_rails(tree.system), tree.proc)
    assert (found.rails, found.covers) == (rails, covers)


def test_thor_on_a_carrier_board_without_its_sensor(tree):
    virtual_sysfs.add_thor(tree)
    (tree.system / "class/hwmon/hwmon1/name").write_text("other\n")
    found = find_board_input(find_rails(tree.system), tree.proc)
    assert found.rails == ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0")


def test_rails_of_other_boards_supply_nothing_known(tree):
    virtual_sysfs.add_xavier_nx(tree)
    tree.set_soc("raspberrypi,4-model-b\0brcm,bcm2711\0")
    assert find_board_input(find_rails(tree.system), tree.proc) is None


def test_unconnected_and_disabled_channels_are_no_rails(tree):
    tree.add_ina3221("1-0040", ["NC", "A", "B"], in3_enable=0)
    assert list_names(tree) == ["A"]


def test_every_chip_is_found_by_its_name(tree):
    for name in ("ina219", "ina226", "ina238", "ina260", "coretemp", "ucsi_source_psy_1"):
        tree.add_chip(name, f"1-00{name[-2:]}", power1_input=1000000)
    names = ["ina219-1-0019", "ina226-1-0026", "ina238-1-0038", "ina260-1-0060"]
    assert list_names(tree) == names


def test_power_is_voltage_times_current_without_a_power_register(tree):
    chip = tree.add_chip("ina219", "1-0044", in1_input=5000, curr1_input=800)
    (rail,) = find_rails(tree.system)
    assert rail.paths == (chip / "in1_input", chip / "curr1_input")


def test_equal_labels_are_told_apart_by_address(tree):
    tree.add_ina3221("1-0040", ["VDD", "A"])
    tree.add_ina3221("1-0041", ["VDD", "B"])
    assert list_names(tree) == ["VDD-1-0040", "A", "VDD-1-0041", "B"]


def test_channels_without_labels_have_numbers(tree):
    chip = tree.add_ina3221("1-0040", ["A"])
    (chip / "in1_label").unlink()
    assert list_names(tree) == ["channel1"]


@pytest.mark.parametrize(
    ("files", "covers", "file"),
    [
        ({"energy2_input": 0}, "gpu", "energy1_input"),
        ({"energy1_input": "", "energy2_input": 0}, "gpu package", "energy2_input"),
    ],
)
def test_card_of_an_intel_gpu_includes_its_package(tree, files, covers, file):
    chip = tree.add_chip("xe", "0000:03:00.0", **{"energy1_input": 0} | files)
    (rail,) = find_rails(tree.system)
    assert (rail.name, rail.covers, rail.unit) == ("xe-0000:03:00.0", covers, "J")
    assert rail.paths == (chip / file,)


def test_tiles_of_an_intel_gpu_are_part_of_its_card(tree):
    virtual_sysfs.add_intel_gpu(tree, "i915")
    virtual_sysfs.add_intel_gpu(tree, "i915_gt0")
    assert list_names(tree) == ["i915-0000:03:00.0"]


def test_slow_chips_say_so(tree):
    virtual_sysfs.add_ina226(tree, update_interval=2253)
    (rail,) = find_rails(tree.system)
    assert rail.update_interval_s == pytest.approx(2.253)


def test_rails_behind_another_are_part_of_it(tree):
    virtual_sysfs.add_agx_orin(tree)
    rails = {rail.name: rail for rail in find_rails(tree.system)}
    parts = list_parts(rails["VIN_SYS_5V0"], tuple(rails.values()))
    assert parts == {"VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"}
    assert list_parts(rails["VDD_CPU_CV"], tuple(rails.values())) == {"VDD_CPU_CV"}
