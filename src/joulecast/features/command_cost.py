"""Run any command under a meter."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError
from joulecast.meters import Meter, Reading

# Faults of the surroundings, after which the energy is still valid.
_TOLERATED_FAULTS = ("other load", "throttled", "limit changed")


@dataclass(frozen=True)
class CommandCost:
    """Energy and duration of a command; no energy where the meter could not tell."""

    energy_j: float | None
    duration_s: float
    exit_code: int
    faults: tuple[str, ...]

    @property
    def power_w(self) -> float | None:
        """Average power."""
        return None if self.energy_j is None else self.energy_j / self.duration_s


def measure_command(command: Sequence[str], meter: Meter, stdout: Any = None) -> CommandCost:
    """Run a command under a meter, which this function opens.

    Raises:
        InputError: The program cannot be started.
    """
    with meter:
        started_s = time.monotonic()
        meter.begin()
        try:
            exit_code = subprocess.call(command, stdout=stdout)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"cannot run {command[0]} ({reason}): give a program that exists"
            ) from error
        # Taken before the meter ends, because a meter may wait for its last reading.
        duration_s = max(time.monotonic() - started_s, 1e-9)
        reading = meter.end()
    # Shells report a signal, a negative code here, as 128 plus its number.
    code = exit_code if exit_code >= 0 else 128 - exit_code
    return CommandCost(scale_energy(reading, duration_s), duration_s, code, reading.faults)


def scale_energy(reading: Reading, duration_s: float) -> float | None:
    """Return the energy of ``duration_s`` seconds from the part of them that the meter covered.

    It is None where the reading is not valid; other load on the device does not make it so.
    """
    serious = [fault for fault in reading.faults if fault.split(":")[0] not in _TOLERATED_FAULTS]
    if serious or reading.duration_s <= 0:
        return None
    return reading.energy_j / reading.duration_s * duration_s
