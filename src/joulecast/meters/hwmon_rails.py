"""Find the power rails that Linux shows in its hwmon folders, and the input rails of known boards.

    INA219, INA226, INA238 …   power1_input (µW), else in1_input (mV) x curr1_input (mA)
    INA3221                    in1_input x curr1_input, and so on for three channels, with in1_label
    INA3221 of JetPack 4       in_power0_input (mW) and rail_name_0 of an IIO device
    Intel GPUs (i915, xe)      energy1_input (µJ): the card; for xe energy2_input is its package

Sources: Documentation/hwmon/{ina2xx,ina238,ina3221}.rst and Documentation/ABI/testing/
sysfs-driver-intel-{i915,xe}-hwmon of Linux; for the rails of Jetson boards the device trees
tegra234-p3701.dtsi and tegra234-p3767.dtsi of Linux, NVIDIA's Jetson Linux Developer Guide (32.6
and 35.6), and https://github.com/energymon/energymon, jetson/JetsonPowerRails.md.

The energy counter of INA chips is not used: before Linux 6.17 its unit was wrong for some of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

_INA_CHIPS = re.compile(r"ina2\d\d|sq52206")
_GPU_CHIPS = ("i915", "xe")
# Labels of channels that nothing is connected to.
_UNUSED = ("", "NC")
# Fast enough for a window of two seconds, slow enough to cost nothing.
_POLL_S = 0.05
_COUNTER_S = 0.001


@dataclass(frozen=True)
class Rail:
    """A sensor of power or energy.

    Attributes:
        name: How users write it (``hwmon:NAME``).
        covers: What it includes.
        unit: ``W``, or ``J`` for a counter.
        paths: Files whose numbers are multiplied with each other and with ``scale``.
    """

    name: str
    covers: str
    unit: str
    paths: tuple[Path, ...]
    scale: float
    update_interval_s: float

    @property
    def sensor(self) -> str:
        """The file that identifies the rail."""
        return str(self.paths[-1])


class BoardInput(NamedTuple):
    """The rails that supply a board, or what of it they cover."""

    board: str
    rails: tuple[str, ...]
    covers: str


# By the first name that the SoC has in the device tree; the first whose rails exist is used.
BOARD_INPUTS: dict[str, tuple[BoardInput, ...]] = {
    "tegra210": (
        BoardInput("Jetson Nano", ("POM_5V_IN",), "board"),
        BoardInput("Jetson TX1", ("VDD_IN",), "module"),
    ),
    "tegra186": (BoardInput("Jetson TX2", ("VDD_IN",), "module"),),
    "tegra194": (
        BoardInput("Jetson Xavier NX", ("VDD_IN",), "module"),
        # There is no rail above these: they are parallel.
        BoardInput(
            "Jetson AGX Xavier", ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"), "module rails"
        ),
    ),
    "tegra234": (
        BoardInput("Jetson Orin NX or Nano", ("VDD_IN",), "module"),
        BoardInput("Jetson AGX Orin", ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"), "module rails"),
    ),
    "tegra264": (
        BoardInput("Jetson AGX Thor", ("VIN",), "board"),
        BoardInput("Jetson Thor", ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"), "module rails"),
    ),
}

# Rails that are supplied by another one, which includes their power. That of memory on an AGX Orin
# is measured at 5 V, behind VIN_SYS_5V0.
_SUPPLIED: dict[str, tuple[str, ...]] = {
    "POM_5V_IN": ("POM_5V_GPU", "POM_5V_CPU"),
    "VDD_IN": (
        *("VDD_GPU", "VDD_CPU", "VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_4V0_WIFI", "VDD_SYS_CPU"),
        *("VDD_SYS_DDR", "VDD_CPU_GPU", "VDD_CPU_GPU_CV", "VDD_SOC"),
    ),
    "VIN_SYS_5V0": ("VDDQ_VDD2_1V8AO",),
    "VIN": ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"),
}


def find_rails(system: Path) -> tuple[Rail, ...]:
    """Return the rails under ``/sys`` of chips that measure power or energy."""
    found = [*_find_hwmon(system / "class/hwmon"), *_find_iio(system / "bus/i2c/drivers/ina3221x")]
    return tuple(_make_unique(found))


def find_board_input(rails: Sequence[Rail], proc: Path) -> BoardInput | None:
    """Return the input of a known board, whose rails all exist; None for other machines."""
    names = {rail.name for rail in rails}
    soc = re.search(r"nvidia,(tegra\d+)", read_line(proc / "device-tree/compatible"))
    inputs = BOARD_INPUTS.get(soc[1], ()) if soc else ()
    return next((one for one in inputs if names.issuperset(one.rails)), None)


def list_parts(rail: Rail, rails: Sequence[Rail]) -> frozenset[str]:
    """Return the names of a rail and of all that it supplies."""
    parts = {rail.name}
    for name in _SUPPLIED.get(rail.name, ()):
        parts.update(*(list_parts(one, rails) for one in rails if one.name == name))
    return frozenset(parts)


def read_line(path: Path) -> str:
    """Return the text of a system file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _find_hwmon(folder: Path) -> Iterator[Rail]:
    for chip in sorted(folder.glob("hwmon*")):
        name = read_line(chip / "name")
        if name == "ina3221":
            yield from _find_channels(chip)
        elif _INA_CHIPS.fullmatch(name):
            yield from _find_single(chip, name)
        elif name in _GPU_CHIPS:
            yield from _find_gpu_counter(chip, name)


def _find_channels(chip: Path) -> Iterator[Rail]:
    """Yield the channels of an INA3221; the sum of currents (curr4) is none."""
    interval_s = _read_interval_s(chip)
    for number in "123":
        paths = (chip / f"in{number}_input", chip / f"curr{number}_input")
        label_path = chip / f"in{number}_label"
        label = read_line(label_path) if label_path.exists() else f"channel{number}"
        is_on = read_line(chip / f"in{number}_enable") != "0"
        if is_on and label not in _UNUSED and all(map(read_line, paths)):
            yield Rail(label, f"rail {label}", "W", paths, 1e-6, interval_s)


def _find_single(chip: Path, name: str) -> Iterator[Rail]:
    label = read_line(chip / "label") or read_line(chip / "in1_label") or _name_chip(chip, name)
    interval_s = _read_interval_s(chip)
    for paths in ((chip / "power1_input",), (chip / "in1_input", chip / "curr1_input")):
        if all(map(read_line, paths)):
            yield Rail(label, f"rail {label}", "W", paths, 1e-6, interval_s)
            return


def _find_gpu_counter(chip: Path, name: str) -> Iterator[Rail]:
    """Yield the counter of the card, which includes its package; some have only the latter."""
    for number, covers in (("1", "gpu"), ("2", "gpu package")):
        path = chip / f"energy{number}_input"
        if read_line(path):
            yield Rail(_name_chip(chip, name), covers, "J", (path,), 1e-6, _COUNTER_S)
            return


def _find_iio(driver: Path) -> Iterator[Rail]:
    for chip in sorted(driver.glob("*-*/iio*device*")):
        for number in "012":
            label = read_line(chip / f"rail_name_{number}")
            path = chip / f"in_power{number}_input"
            if label not in _UNUSED and read_line(path):
                yield Rail(label, f"rail {label}", "W", (path,), 1e-3, _POLL_S)


def _name_chip(chip: Path, name: str) -> str:
    """Return a name that stays the same when Linux numbers its folders anew."""
    device = chip / "device"
    return f"{name}-{device.resolve().name}" if device.exists() else name


def _make_unique(rails: Sequence[Rail]) -> Iterator[Rail]:
    """Yield rails with names of their own: two chips may have channels of one label."""
    counts = Counter(rail.name for rail in rails)
    for rail in rails:
        if counts[rail.name] == 1:
            yield rail
            continue
        place = _name_chip(rail.paths[0].parent, rail.name)
        name = place if place != rail.name else f"{rail.name}-{rail.paths[0].parent.name}"
        yield replace(rail, name=name, covers=f"rail {name}" if rail.unit == "W" else rail.covers)


def _read_interval_s(chip: Path) -> float:
    """Return how often the chip updates; it averages in between."""
    text = read_line(chip / "update_interval")
    return max(int(text) / 1e3, _POLL_S) if text.isdecimal() else _POLL_S
