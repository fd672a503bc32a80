"""Measure boards and GPUs with the sensors in Linux's hwmon folders.

    hwmon                 the input of a known board (Jetson), else the only sensor that there is
    hwmon:VDD_CPU_CV      one rail, as ``joulecast detect`` lists them

Power is polled while a window is open, and integrated; counters of Intel GPUs are read at both ends
of a window and every ten seconds, because they may wrap around unseen. ``hwmon_rails`` finds the
sensors and knows which rails include others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from joulecast.errors import InputError, MeasurementError
from joulecast.meters.base import MeterInfo, Reading, UnavailableError, explain_read_errors
from joulecast.meters.guarded import GuardedMeter
from joulecast.meters.hwmon_rails import (
    BoardInput,
    Rail,
    find_board_input,
    find_rails,
    list_parts,
)
from joulecast.meters.ticker import MakeTicker, Ticker
from joulecast.meters.trace import Sample, integrate, subtract_counts

SYSTEM = Path("/sys")
PROC = Path("/proc")

_WINDOW_S = 2.0
_WINDOW_SAMPLES = 20
_COUNTER_WINDOW_S = 1.0
_COUNTER_TICK_S = 10.0
_RESOLUTION_J = 1e-6


class HwmonMeter(GuardedMeter):
    """Sensors that measure power, or counters of energy, added up."""

    name = "hwmon"

    def __init__(
        self,
        rails: Sequence[Rail],
        covers: str = "",
        now: Callable[[], float] = time.monotonic,
        ticker: MakeTicker = Ticker,
    ) -> None:
        """Make the meter.

        Args:
            rails: What to read: parallel rails, all of one unit.
            covers: What they cover together; by default what the first one covers.
            now: The clock.
            ticker: Makes the ticker that reads the sensors while a window is open.
        """
        self.rails = tuple(rails)
        self.covers = covers or rails[0].covers
        self.instrument = " ".join(rail.sensor for rail in rails)
        self.parts = frozenset(rail.name for rail in rails)
        self.update_interval_s = max(rail.update_interval_s for rail in rails)
        self._is_counter = rails[0].unit == "J"
        if self._is_counter:
            self.window_s = _COUNTER_WINDOW_S
        else:
            self.window_s = max(_WINDOW_S, _WINDOW_SAMPLES * self.update_interval_s)
        self._now = now
        tick_s = _COUNTER_TICK_S if self._is_counter else self.update_interval_s
        self._ticker = ticker(tick_s, self._sample)
        self._begun_s = 0.0
        self._samples: list[Sample] = []

    def read_power_w(self) -> float | None:
        """Return the current power; None for a counter."""
        return None if self._is_counter else self._read()

    def _start(self) -> None:
        self._ticker.start()
        self._samples = []
        if self._is_counter:
            self._sample()
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        end_s = self._now()
        self._ticker.stop()
        if not self._is_counter:
            return integrate(self._samples, self._begun_s, end_s)
        self._sample()
        return subtract_counts([value for _, value in self._samples], end_s - self._begun_s)

    def _release(self) -> None:
        self._ticker.stop()

    def _sample(self) -> None:
        begin_s = self._now()
        value = self._read()
        # Reading several chips over I2C takes milliseconds: assume the middle.
        self._samples.append(Sample((begin_s + self._now()) / 2, value))

    def _read(self) -> float:
        with explain_read_errors("a hwmon sensor", "check its driver"):
            return sum(_read_rail(rail) for rail in self.rails)


def _read_rail(rail: Rail) -> float:
    value = rail.scale
    for path in rail.paths:
        value *= int(path.read_text())
    return value


# ---------------------------------------------------------------------------------------------
# Make and detect


def make_hwmon(argument: str, system: Path = SYSTEM, proc: Path = PROC) -> HwmonMeter:
    """Return the meter of ``hwmon`` (the input of the board) or ``hwmon:RAIL``."""
    rails = _find_or_raise(system)
    board = find_board_input(rails, proc)
    if board is not None and (not argument or board.rails == (argument,)):
        return _make_board(board, rails)
    if argument:
        return _make_rail(argument, rails)
    if len(rails) > 1:
        names = ", ".join(f"hwmon:{rail.name}" for rail in rails)
        raise UnavailableError(
            f"there are {len(rails)} sensors, and which of them supplies this board is unknown",
            f"choose from {names}",
        )
    return _make_rail(rails[0].name, rails)


def make_board_hwmon(system: Path = SYSTEM, proc: Path = PROC) -> HwmonMeter:
    """Return the meter of the input of a known board, which covers all that runs on it."""
    rails = _find_or_raise(system)
    board = find_board_input(rails, proc)
    if board is None:
        raise UnavailableError("the input rail of this board is unknown", "give hwmon:RAIL")
    return _make_board(board, rails)


def detect_hwmon(system: Path = SYSTEM, proc: Path = PROC) -> tuple[MeterInfo, ...]:
    """Return the input of the board and each of its rails, or one row that says why not."""
    try:
        rails = _find_or_raise(system)
    except UnavailableError as error:
        return (error.to_info(HwmonMeter.name, "board"),)
    board = find_board_input(rails, proc)
    rows = [_describe(_make_rail(rail.name, rails), f"hwmon:{rail.name}") for rail in rails]
    if board is not None:
        rows.insert(0, _describe(_make_board(board, rails), "hwmon", board.board))
    return tuple(rows)


def _find_or_raise(system: Path) -> tuple[Rail, ...]:
    rails = find_rails(system)
    if not rails:
        raise UnavailableError(
            f"no sensor of power or energy under {system / 'class/hwmon'}",
            "load the driver of its chip (ina2xx, ina238, ina3221, i915 or xe), or use another "
            "meter",
        )
    return rails


def _make_rail(name: str, rails: Sequence[Rail]) -> HwmonMeter:
    found = [rail for rail in rails if rail.name == name]
    if not found:
        names = ", ".join(rail.name for rail in rails)
        raise InputError(f"there is no rail {name!r}: choose from {names}")
    meter = HwmonMeter(found)
    meter.parts = list_parts(found[0], rails)
    return meter


def _make_board(board: BoardInput, rails: Sequence[Rail]) -> HwmonMeter:
    inputs = [rail for rail in rails if rail.name in board.rails]
    meter = HwmonMeter(inputs, board.covers)
    meter.covers_machine = True
    meter.parts = frozenset().union(*(list_parts(rail, rails) for rail in inputs))
    return meter


def _describe(meter: HwmonMeter, name: str, board: str = "") -> MeterInfo:
    try:
        power_w = meter.read_power_w()
    except MeasurementError as error:
        return UnavailableError(str(error), "use another rail").to_info(name, meter.covers)
    rails = " + ".join(rail.name for rail in meter.rails)
    return MeterInfo(
        name,
        True,
        f"{board}: {rails}" if board else str(meter.rails[0].paths[0].parent),
        covers=meter.covers,
        update_interval_s=meter.update_interval_s,
        resolution_j=_RESOLUTION_J if power_w is None else None,
        idle_power_w=power_w,
    )
