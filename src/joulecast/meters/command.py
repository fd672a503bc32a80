"""A program that prints joules or watts is a meter.

        … 123.4 J      a counter: read when a window begins and ends, the difference counts
        … 55 W         a power: read again and again while a window is open, and added up

Takes the program with its arguments (no shell), gives Readings. Which of the two it is, the unit of
the last number on its output says (J, mJ, kJ, Wh, W, mW …). A counter that is read by a slow
program also counts what flows while the program runs, so windows are made long beside its run.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from joulecast.errors import InputError, MeasurementError
from joulecast.meters.base import MeterInfo, Reading, UnavailableError
from joulecast.meters.guarded import GuardedMeter
from joulecast.meters.quantity import Quantity, read_quantity
from joulecast.meters.ticker import MakeTicker, Ticker
from joulecast.meters.trace import Sample, integrate

_POLL_S = 0.1
_LIMIT_S = 10.0
_WINDOW_S = 1.0
# A program's run is then at most two per cent of a counter's window.
_WINDOW_RUNS = 50
_WINDOW_SAMPLES = 10

RunProgram = Callable[[Sequence[str]], str]


def run_program(command: Sequence[str]) -> str:
    """What a program prints, its failures in our words."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"{shown!r} printed nothing in {_LIMIT_S:g} s") from error
    except OSError as error:
        reason = f"the program {command[0]!r} does not run ({error.strerror})"
        raise UnavailableError(reason, "give one that does, with its path") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise MeasurementError(
            f"{shown!r} failed with exit code {done.returncode} ({words[-1]}); run it by hand"
        )
    return done.stdout.decode(errors="replace")


class CommandMeter(GuardedMeter):
    """A program that prints its joules so far, or its watts now."""

    name = "command"
    window_s = _WINDOW_S

    def __init__(
        self,
        command: Sequence[str],
        covers: str = "board",
        now: Callable[[], float] = time.monotonic,
        run: RunProgram = run_program,
        ticker: MakeTicker = Ticker,
    ) -> None:
        """Make the meter.

        Args:
            command: The program and its arguments.
            covers: What its number includes.
            now: The clock.
            run: Runs the program and gives what it printed.
            ticker: Makes what polls watts while a window is open.
        """
        self.covers = covers
        self._command = tuple(command)
        self._now = now
        self._run = run
        self._ticker = ticker(_POLL_S, self._sample)
        self._unit = ""
        self._begun_s = 0.0
        self._begun_j = 0.0
        self._samples: list[Sample] = []

    def _connect(self) -> None:
        begin_s = self._now()
        self._unit = read_quantity(self._run(self._command)).unit
        run_s = self._now() - begin_s
        if self._unit == "W":
            self.period_s = _POLL_S + run_s
            self.window_s = max(_WINDOW_S, _WINDOW_SAMPLES * self.period_s)
        else:
            self.window_s = max(_WINDOW_S, _WINDOW_RUNS * run_s)

    def _start(self) -> None:
        if self._unit == "W":
            self._ticker.stop()
            self._samples = []
            self._ticker.start()
        else:
            self._begun_j = self._read().value
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        end_s = self._now()
        if self._unit == "W":
            self._ticker.stop()
            return integrate(self._samples, self._begun_s, end_s)
        return _compare(self._begun_j, self._read().value, end_s - self._begun_s)

    def _release(self) -> None:
        self._ticker.stop()

    def _read(self) -> Quantity:
        quantity = read_quantity(self._run(self._command))
        if quantity.unit != self._unit:
            raise MeasurementError(
                f"{' '.join(self._command)!r} printed {self._unit} first and {quantity.unit} now: "
                "it must print one unit"
            )
        return quantity

    def _sample(self) -> None:
        begin_s = self._now()
        power_w = self._read().value
        # Nobody knows when within its run it looked: most likely in the middle.
        self._samples.append(Sample((begin_s + self._now()) / 2, power_w))


def _compare(begin_j: float, end_j: float, duration_s: float) -> Reading:
    faults = []
    if end_j < begin_j:
        faults.append(f"reset: the counter fell from {begin_j:g} to {end_j:g} J")
    if end_j == begin_j:
        faults.append(f"stuck: the counter stayed at {begin_j:g} J")
    return Reading(max(end_j - begin_j, 0.0), duration_s, tuple(faults))


def make_command(argument: str) -> CommandMeter:
    """The meter of ``command:PROGRAM ARGUMENTS``."""
    try:
        command = shlex.split(argument)
    except ValueError as error:
        raise InputError(f"command:{argument} cannot be split into words ({error})") from error
    if not command or shutil.which(command[0]) is None:
        program = command[0] if command else ""
        advice = "give one that prints joules or watts: command:PROGRAM ARGUMENTS"
        raise UnavailableError(f"there is no program {program!r}", advice)
    # The file's name without its folders: what it says of whoever ran it stays at home.
    return CommandMeter(command, covers=f"board by {Path(command[0]).name}")


def detect_command() -> tuple[MeterInfo, ...]:
    """There for anybody who has a program that prints joules or watts."""
    reason = "ask for it with a program that prints joules or watts: command:PROGRAM ARGUMENTS"
    return (MeterInfo(CommandMeter.name, True, reason, covers="board"),)
