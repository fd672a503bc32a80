"""Measure boards and GPUs with the sensors in Linux's hwmon folders.

    hwmon                 the input of a known board (Jetson), else the only sensor
    hwmon:VDD_CPU_CV      one rail, as ``joulecast detect`` lists them

    INA219, INA226, INA238 …   power1_input (µW), else in1_input (mV) x curr1_input (mA)
    INA3221                    in1_input x curr1_input, and so on for three channels, with in1_label
    INA3221 of JetPack 4       in_power0_input (mW) and rail_name_0 of an IIO device
    Intel GPUs (i915, xe)      energy1_input (µJ): the card; for xe energy2_input is its package

Power is polled while a window is open, and integrated; counters of Intel GPUs are read at both ends
of a window and every ten seconds, because they may wrap around unseen. The energy counter of INA
chips is not used: before Linux 6.17 its unit was wrong for some of them.

Sources: Documentation/hwmon/{ina2xx,ina238,ina3221}.rst and Documentation/ABI/testing/
sysfs-driver-intel-{i915,xe}-hwmon of Linux; for the rails of Jetson boards the device trees
tegra234-p3701.dtsi and tegra234-p3767.dtsi of Linux, NVIDIA's Jetson Linux Developer Guide (32.6
and 35.6), and https://github.com/energymon/energymon, jetson/JetsonPowerRails.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from joulecast.devices.detect import read_system
from joulecast.meters.base import (
    MeterInfo,
    MeterRequest,
    UnavailableError,
    explain_missing,
    explain_read_errors,
)
from joulecast.meters.sampling import SampledMeter
from joulecast.system.errors import InputError, MeasurementError

SYSTEM = Path("/sys")
PROC = Path("/proc")

_WINDOW_S = 2.0
_WINDOW_SAMPLES = 20
_COUNTER_WINDOW_S = 1.0
_COUNTER_TICK_S = 10.0
_RESOLUTION_J = 1e-6

_INA_CHIPS = re.compile(r"ina2\d\d|sq52206")
_GPU_CHIPS = ("i915", "xe")
# Labels of channels that nothing is connected to.
_UNUSED = ("", "NC")
# Fast enough for a window of two seconds, slow enough to cost nothing.
_POLL_S = 0.05
_COUNTER_S = 0.001


class HwmonMeter(SampledMeter):
    """Sensors that measure power, or counters of energy, added up: a rail, or those of a board."""

    name = "hwmon"

    def __init__(
        self, measured: Sequence[Rail], rails: Sequence[Rail], board: BoardInput | None = None
    ) -> None:
        self.measured = tuple(measured)
        self.covers = board.covers if board else measured[0].covers
        self.covers_machine = board is not None
        self.instrument = " ".join(rail.sensor for rail in measured)
        self.parts = frozenset().union(*(list_parts(rail, rails) for rail in measured))
        self.update_interval_s = max(rail.update_interval_s for rail in measured)
        self.unit = measured[0].unit
        self.tick_s, self.window_s = _COUNTER_TICK_S, _COUNTER_WINDOW_S
        if self.unit == "W":
            self.tick_s = self.update_interval_s
            self.window_s = max(_WINDOW_S, _WINDOW_SAMPLES * self.tick_s)
        names = " + ".join(rail.name for rail in measured)
        self.found = f"{board.board}: {names}" if board else str(measured[0].paths[0].parent)

    def read_power_w(self) -> float | None:
        """Return the current power; None for a counter."""
        return None if self.unit == "J" else self._read()

    def _read(self) -> float:
        with explain_read_errors("a hwmon sensor", "check its driver"):
            return sum(
                rail.scale * math.prod(int(path.read_text()) for path in rail.paths)
                for rail in self.measured
            )


# ---------------------------------------------------------------------------------------------
# Make and detect


def make_hwmon(request: MeterRequest) -> HwmonMeter:
    """Return the meter of ``hwmon`` (the input of the board) or ``hwmon:RAIL``."""
    meters, name = find_meters(SYSTEM, PROC), request.argument
    board = meters.pop("", None)
    # A rail that is the board's only input covers what the board does.
    if board is not None and (not name or [name] == [rail.name for rail in board.measured]):
        return board
    if not name and len(meters) > 1:
        raise UnavailableError(
            f"there are {len(meters)} sensors, and which of them supplies this board is unknown",
            f"choose from {', '.join(f'hwmon:{rail}' for rail in meters)}",
        )
    if name and name not in meters:
        raise InputError(f"there is no rail {name!r}: choose from {', '.join(meters)}")
    return meters[name or next(iter(meters))]


def detect_hwmon() -> tuple[MeterInfo, ...]:
    """Return the input of the board and each of its rails."""
    meters = find_meters(SYSTEM, PROC)
    return tuple(_describe(f"hwmon:{rail}".rstrip(":"), meters[rail]) for rail in meters)


def _describe(name: str, meter: HwmonMeter) -> MeterInfo:
    meter.name = name
    try:
        power_w = meter.read_power_w()
    except MeasurementError as error:
        return explain_missing(name, meter.covers, error)
    return meter.to_info(meter.found, _RESOLUTION_J if power_w is None else None, power_w)


def find_meters(system: Path, proc: Path) -> dict[str, HwmonMeter]:
    """Return the meter of the input of a known board as ``""``, and that of each rail by name."""
    rails = find_rails(system)
    if not rails:
        raise UnavailableError(
            f"no sensor of power or energy under {system / 'class/hwmon'}",
            "load the driver of its chip (ina2xx, ina238, ina3221, i915 or xe), or use another "
            "meter",
        )
    meters = {rail.name: HwmonMeter([rail], rails) for rail in rails}
    board = find_board_input(rails, proc)
    if board is None:
        return meters
    inputs = [rail for rail in rails if rail.name in board.rails]
    return {"": HwmonMeter(inputs, rails, board), **meters}


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
    soc = re.search(r"nvidia,(tegra\d+)", read_system(proc / "device-tree/compatible"))
    inputs = BOARD_INPUTS.get(soc[1], ()) if soc else ()
    return next((one for one in inputs if names.issuperset(one.rails)), None)


def list_parts(rail: Rail, rails: Sequence[Rail]) -> frozenset[str]:
    """Return the names of a rail and of all that it supplies."""
    parts = {rail.name}
    for name in _SUPPLIED.get(rail.name, ()):
        parts.update(*(list_parts(one, rails) for one in rails if one.name == name))
    return frozenset(parts)


def _find_hwmon(folder: Path) -> Iterator[Rail]:
    for chip in sorted(folder.glob("hwmon*")):
        name = read_system(chip / "name")
        text = read_system(chip / "update_interval")
        # The chip averages in between.
        interval_s = max(int(text) / 1e3, _POLL_S) if text.isdecimal() else _POLL_S
        if name == "ina3221":
            # Three channels; the sum of currents (curr4) is none.
            for n in "123":
                paths = (chip / f"in{n}_input", chip / f"curr{n}_input")
                has_label = (chip / f"in{n}_label").exists()
                label = read_system(chip / f"in{n}_label") if has_label else f"channel{n}"
                is_on = read_system(chip / f"in{n}_enable") != "0"
                if is_on and label not in _UNUSED and all(map(read_system, paths)):
                    yield Rail(label, f"rail {label}", "W", paths, 1e-6, interval_s)
        elif _INA_CHIPS.fullmatch(name):
            labels = (read_system(chip / file) for file in ("label", "in1_label"))
            label = next(filter(None, labels), _name_chip(chip, name))
            choices = ((chip / "power1_input",), (chip / "in1_input", chip / "curr1_input"))
            for files in [one for one in choices if all(map(read_system, one))][:1]:
                yield Rail(label, f"rail {label}", "W", files, 1e-6, interval_s)
        elif name in _GPU_CHIPS:
            # The counter of the card includes its package; some have only the latter.
            counters = {"gpu": chip / "energy1_input", "gpu package": chip / "energy2_input"}
            for covers, path in [one for one in counters.items() if read_system(one[1])][:1]:
                yield Rail(_name_chip(chip, name), covers, "J", (path,), 1e-6, _COUNTER_S)


def _find_iio(driver: Path) -> Iterator[Rail]:
    for chip in sorted(driver.glob("*-*/iio*device*")):
        for number in "012":
            label = read_system(chip / f"rail_name_{number}")
            path = chip / f"in_power{number}_input"
            if label not in _UNUSED and read_system(path):
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
