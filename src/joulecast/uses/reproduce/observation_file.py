"""Keep observations in a file of lines, each written to the disk before the next is measured.

    {"trial": ..., "energy_j": ..., "run": "reproduce.fig2", ...}      one observation a line

A process that is killed while it writes leaves at most one incomplete line at the end, which is
removed when the file is opened again. The file needs no database, so that it can be written on a
machine that has little installed, and read anywhere. A file compressed by gzip beside it, with
``.gz`` at the end of its name, is read first: that is how finished ones are kept.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Sequence
from itertools import chain
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
        packed = path.with_name(f"{path.name}.gz")
        found = _parse(_unpack(packed), packed) if packed.exists() else []
        if path.exists():
            found += _parse(_read(path), path)
        self._by_profile: dict[str, list[Observation]] = {}
        for one in found:
            self._by_profile.setdefault(find_key(one), []).append(one)

    def list_all(self) -> tuple[Observation, ...]:
        """Return all observations, profile by profile in the order they were made."""
        return tuple(chain.from_iterable(self._by_profile.values()))

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """Return the observations of one profile in the order they were made."""
        return tuple(self._by_profile.get(profile_key, ()))

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
        self._by_profile.setdefault(find_key(observation), []).append(observation)

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return nothing: every campaign of an experiment starts afresh."""
        return None

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Discard the fit: the observations are what is kept."""


def find_key(observation: Observation) -> str:
    """Return the key of the profile that an observation belongs to."""
    one = observation
    return Profile(one.device, one.runtime, one.covers, one.provenance).key


def _read(path: Path) -> bytes:
    """Return the complete lines of a file, and remove an incomplete one."""
    data = read_limited(path, MOST_UNPACKED_BYTES)
    whole, _, rest = data.rpartition(b"\n")
    if rest:
        # The process was killed while it wrote this line: the next one must not continue it.
        with path.open("r+b") as file:
            file.truncate(len(data) - len(rest))
    return whole


def _unpack(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            data = file.read(MOST_UNPACKED_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path} is damaged ({error}): restore it") from error
    if len(data) > MOST_UNPACKED_BYTES:
        raise FileError(f"{path} unpacks to more than {MOST_UNPACKED_BYTES // 2**20} MiB")
    return data.rstrip(b"\n")


def _parse(lines: bytes, path: Path) -> list[Observation]:
    observations = []
    for number, line in enumerate(lines.split(b"\n") if lines else [], start=1):
        try:
            values = parse_json(line)
        except ValueError as error:
            raise FileError(
                f"line {number} of {path} is damaged ({error}): restore the file, or remove the "
                "line to measure its trial again"
            ) from error
        observations.append(load_record(Observation, values, f"line {number} of {path}"))
    return observations
