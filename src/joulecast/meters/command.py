"""Read energy or power from a program that prints joules or watts.

    … 123.4 J      a counter: read at the start and at the end of a window
    … 55 W         a power: polled while a window is open, and integrated

The unit of the last number that the program prints (J, mJ, kJ, Wh, W, mW …) decides which of the
two it is. The program runs without a shell. A counter also counts the energy of running a slow
program, so windows are long compared to its duration.
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
# Running the program then takes at most 2 % of a counter's window.
_WINDOW_RUNS = 50
_WINDOW_SAMPLES = 10

RunProgram = Callable[[Sequence[str]], str]


def run_program(command: Sequence[str]) -> str:
    """Run a program and return what it prints.

    Raises:
        UnavailableError: The program cannot be started.
        MeasurementError: The program fails, or takes too long.
    """
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
        raise MeasurementError(
            f"{shown!r} did not finish in {_LIMIT_S:g} s: run it by hand"
        ) from error
    except OSError as error:
        reason = f"the program {command[0]!r} cannot be run ({error.strerror})"
        raise UnavailableError(reason, "give the path of an executable program") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no error message"]
        raise MeasurementError(
            f"{shown!r} failed with exit code {done.returncode} ({lines[-1]}): run it by hand"
        )
    return done.stdout.decode(errors="replace")


class CommandMeter(GuardedMeter):
    """A program that prints an energy counter or the current power."""

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
            run: Runs the program and returns what it prints.
            ticker: Makes the ticker that polls power while a window is open.
        """
        self.covers = covers
        self.instrument = shlex.join([shutil.which(command[0]) or command[0], *command[1:]])
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
            self.update_interval_s = _POLL_S + run_s
            self.window_s = max(_WINDOW_S, _WINDOW_SAMPLES * self.update_interval_s)
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
        return _subtract(self._begun_j, self._read().value, end_s - self._begun_s)

    def _release(self) -> None:
        self._ticker.stop()

    def _read(self) -> Quantity:
        quantity = read_quantity(self._run(self._command))
        if quantity.unit != self._unit:
            raise MeasurementError(
                f"{' '.join(self._command)!r} printed {self._unit} before and {quantity.unit} now: "
                "make it print one unit"
            )
        return quantity

    def _sample(self) -> None:
        begin_s = self._now()
        power_w = self._read().value
        # The program reads its sensor at an unknown moment: assume the middle of its run.
        self._samples.append(Sample((begin_s + self._now()) / 2, power_w))


def _subtract(begin_j: float, end_j: float, duration_s: float) -> Reading:
    faults = []
    if end_j < begin_j:
        faults.append(f"reset: the counter fell from {begin_j:g} to {end_j:g} J")
    if end_j == begin_j:
        faults.append(f"stuck: the counter stayed at {begin_j:g} J")
    return Reading(max(end_j - begin_j, 0.0), duration_s, tuple(faults))


def make_command(argument: str) -> CommandMeter:
    """Return the meter of ``command:PROGRAM ARGUMENTS``."""
    try:
        command = shlex.split(argument)
    except ValueError as error:
        raise InputError(
            f"command:{argument} cannot be split into arguments ({error}): check its quotes"
        ) from error
    if not command or shutil.which(command[0]) is None:
        program = command[0] if command else ""
        advice = "give one that prints joules or watts: command:PROGRAM ARGUMENTS"
        raise UnavailableError(f"there is no program {program!r}", advice)
    # Without its folders, which could identify the user.
    return CommandMeter(command, covers=f"board by {Path(command[0]).name}")


def detect_command() -> tuple[MeterInfo, ...]:
    """Return the one command meter, which is available with any program."""
    reason = "give a program that prints joules or watts: command:PROGRAM ARGUMENTS"
    return (MeterInfo(CommandMeter.name, True, reason, covers="board"),)
