"""Read energy or power from a program that prints joules or watts.

    … 123.4 J      a counter: read at the start and at the end of a window
    … 55 W         a power: polled while a window is open, and integrated

The unit of the last number that the program prints (J, mJ, kJ, Wh, W, mW …) decides which of the
two it is. The program runs without a shell. A counter also counts the energy of running a slow
program, so windows are long compared to its duration.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulecast.meters.base import MeterRequest, UnavailableError
from joulecast.meters.sampling import SampledMeter
from joulecast.system.errors import InputError, MeasurementError
from joulecast.system.units import parse_energy

_POLL_S = 0.1
_LIMIT_S = 10.0
_WINDOW_S = 1.0
# Running the program then takes at most 2 % of a counter's window.
_WINDOW_RUNS = 50
_WINDOW_SAMPLES = 10

RunProgram = Callable[[Sequence[str]], str]


def run_program(command: Sequence[str]) -> str:
    """Run a program and return what it prints."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
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


class CommandMeter(SampledMeter):
    """A program that prints an energy counter or the current power."""

    name = "command"
    window_s = _WINDOW_S

    def __init__(
        self, command: Sequence[str], covers: str = "board", run: RunProgram = run_program
    ) -> None:
        self.covers = covers
        self.instrument = shlex.join([shutil.which(command[0]) or command[0], *command[1:]])
        self._command = tuple(command)
        self._run = run

    def _connect(self) -> None:
        begin_s = self.clock.now()
        self.unit = read_quantity(self._run(self._command)).unit
        run_s = self.clock.now() - begin_s
        self.tick_s = _POLL_S if self.unit == "W" else 0.0
        if self.tick_s:
            self.update_interval_s = _POLL_S + run_s
            self.window_s = max(_WINDOW_S, _WINDOW_SAMPLES * self.update_interval_s)
        else:
            self.window_s = max(_WINDOW_S, _WINDOW_RUNS * run_s)

    def _read(self) -> float:
        quantity = read_quantity(self._run(self._command))
        if quantity.unit != self.unit:
            raise MeasurementError(
                f"{' '.join(self._command)!r} printed {self.unit} before and {quantity.unit} now: "
                "make it print one unit"
            )
        return quantity.value


def make_command(request: MeterRequest) -> CommandMeter:
    """Return the meter of ``command:PROGRAM ARGUMENTS``."""
    try:
        command = shlex.split(request.argument)
    except ValueError as error:
        raise InputError(
            f"command:{request.argument} cannot be split into arguments ({error}): check its quotes"
        ) from error
    if not command or shutil.which(command[0]) is None:
        program = command[0] if command else ""
        advice = "give one that prints joules or watts: command:PROGRAM ARGUMENTS"
        raise UnavailableError(f"there is no program {program!r}", advice)
    # Without its folders, which could identify the user.
    return CommandMeter(command, covers=f"board by {Path(command[0]).name}")


_QUANTITY = re.compile(
    r"(?<![\w.,])"  # not from the middle of a word or a number
    r"(?P<sign>[-+]?)"
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)"
    r"\s*(?P<prefix>[nuµμmkKMG]?)(?P<unit>Wh|J|W|[jJ]oules?|[wW]atts?)(?!\w)"
)
_SHOWN = 60


@dataclass(frozen=True)
class Quantity:
    """A number with its unit, ``J`` or ``W``."""

    value: float
    unit: str


def read_quantity(text: str) -> Quantity:
    """Return the last number of joules or watts in a text."""
    matches = list(_QUANTITY.finditer(text))
    if not matches:
        shown = " ".join(text.split())[-_SHOWN:]
        raise InputError(f"no joules or watts in {shown!r}: print a number with J, Wh or W")
    found = matches[-1].groupdict()
    is_power = found["unit"][0] in "Ww" and found["unit"] != "Wh"
    # A watt is a joule per second, so its prefixes scale the same way.
    energy_unit = "Wh" if found["unit"] == "Wh" else "J"
    try:
        size = parse_energy(found["number"].replace(",", "") + found["prefix"] + energy_unit)
    except InputError as error:
        raise InputError(f"{matches[-1][0]!r} is too large: print a number like 55 W") from error
    return Quantity(-size if found["sign"] == "-" else size, "W" if is_power else "J")
