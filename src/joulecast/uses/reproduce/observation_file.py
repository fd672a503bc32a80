"""Keep observations in a file of lines, each written to the disk before the next is measured.

    {"trial": ..., "energy_j": ..., "run": "reproduce.fig2", ...}      one observation a line

A process that is killed while it writes leaves at most one incomplete line at the end, which is
removed when the file is opened again. The file needs no database, so that it can be written on a
machine that has little installed, and read anywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joulecast.errors import FileError
from joulecast.input_files import MOST_UNPACKED_BYTES, parse_json, read_limited
from joulecast.records import Observation, Profile, load_record

Json = dict[str, Any]


class ObservationFile:
    """The observations of a folder, as an ``ObservationLog``.

    Args:
        path: The file; it is created with the first observation.

    Raises:
        FileError: The file cannot be read, or a line that is not the last is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._observations = list(_read(path)) if path.exists() else []

    def list_all(self) -> tuple[Observation, ...]:
        """Return all observations in the order they were made."""
        return tuple(self._observations)

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """Return the observations of one profile in the order they were made."""
        return [one for one in self._observations if find_key(one) == profile_key]

    def add_observation(self, observation: Observation) -> None:
        """Write an observation to the disk.

        Raises:
            FileError: The file cannot be written.
        """
        line = json.dumps(observation.to_dict(), separators=(",", ":"), allow_nan=False)
        try:
            with self.path.open("ab") as file:
                file.write(line.encode("utf-8") + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            reason = error.strerror or str(error)
            raise FileError(f"cannot write {self.path} ({reason}): give another --out") from error
        self._observations.append(observation)

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return nothing: every campaign of an experiment starts afresh."""
        return None

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Discard the fit: the observations are what is kept."""


def find_key(observation: Observation) -> str:
    """Return the key of the profile that an observation belongs to."""
    one = observation
    return Profile(one.device, one.runtime, one.covers, one.provenance).key


def _read(path: Path) -> list[Observation]:
    data = read_limited(path, MOST_UNPACKED_BYTES)
    whole, _, rest = data.rpartition(b"\n")
    if rest:
        # The process was killed while it wrote this line: the next one must not continue it.
        with path.open("r+b") as file:
            file.truncate(len(data) - len(rest))
    observations = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            values = parse_json(line)
        except ValueError as error:
            raise FileError(
                f"line {number} of {path} is damaged ({error}): restore the file, or remove the "
                "line to measure its trial again"
            ) from error
        observations.append(load_record(Observation, values, f"line {number} of {path}"))
    return observations
