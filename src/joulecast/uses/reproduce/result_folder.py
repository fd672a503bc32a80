"""The folder of a reproduction: observations, results, pictures and a summary page.

FOLDER/device.json          device, runtime, meter and settings that everything here belongs to
FOLDER/observations.jsonl   every observation, in the order they were made
FOLDER/fig2.json, .svg      the result of an experiment, and its picture
FOLDER/summary.md           all results on one page
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from joulecast.errors import FileError, InputError, MissingError
from joulecast.files import write_atomically
from joulecast.input_files import MOST_JSON_BYTES, parse_json, read_limited
from joulecast.records import Device, Profile, load_record
from joulecast.records.codec import Record, omit_default
from joulecast.records.observation import Provenance
from joulecast.uses.reproduce.experiment import ExperimentResult
from joulecast.uses.reproduce.paper_settings import PaperSettings

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class FolderIdentity(Record):
    """What the observations of a folder belong to."""

    device: Device
    runtime: str
    covers: str
    provenance: Provenance
    is_gpu: bool
    is_quick: bool
    is_faithful: bool = omit_default(False)

    @property
    def profile(self) -> Profile:
        """The profile of its observations, without them."""
        return Profile(self.device, self.runtime, self.covers, self.provenance)

    @property
    def settings(self) -> PaperSettings:
        """How large its experiments are."""
        return PaperSettings(self.is_gpu, self.is_quick, self.is_faithful)


@dataclass(frozen=True)
class ResultFolder:
    """A folder of results."""

    path: Path

    def __post_init__(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: give --out a folder")

    @property
    def observations(self) -> Path:
        """The file of observations."""
        return self.path / "observations.jsonl"

    def claim(self, identity: FolderIdentity) -> None:
        """Create the folder for a device, or check that it belongs to it.

        A folder without observations belongs to no device: its first run failed early.

        Raises:
            InputError: It holds results of another device, or of other settings.
            FileError: It cannot be written.
        """
        known = self.find_identity() if self._has_observations() else None
        if known is None:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                reason = error.strerror or str(error)
                raise FileError(
                    f"cannot create {self.path} ({reason}): give another --out"
                ) from error
            self._write(self.path / "device.json", identity)
            return
        if known.profile.key != identity.profile.key:
            raise InputError(
                f"{self.path} holds results of {known.device.name} ({known.runtime}, "
                f"{known.provenance}), not of {identity.device.name} ({identity.runtime}, "
                f"{identity.provenance}): give another --out"
            )
        if known.device.unit != identity.device.unit:
            raise InputError(
                f"{self.path} holds results of another unit of {known.device.name}, and units "
                "differ by more than estimates do: continue there, or give another --out"
            )
        for name in ("quick", "faithful"):
            was_given, is_given = (getattr(one, f"is_{name}") for one in (known, identity))
            if was_given != is_given:
                how = f"{'with' if was_given else 'without'} --{name}"
                raise InputError(
                    f"{self.path} holds results {how}: run it {how} again, or give another --out"
                )

    def find_identity(self) -> FolderIdentity | None:
        """Return what the folder belongs to; None if it is new."""
        path = self.path / "device.json"
        return _load(FolderIdentity, path) if path.exists() else None

    def read_identity(self) -> FolderIdentity:
        """Return what the folder belongs to.

        Raises:
            MissingError: Nothing was measured into it.
        """
        found = self.find_identity()
        if found is None:
            raise MissingError(
                f"{self.path} holds no measurements: run `joulecast reproduce` without --redraw "
                "first, or give the --out of an earlier run"
            )
        return found

    def save_result(self, result: ExperimentResult) -> Path:
        """Write a result as JSON."""
        path = self.path / f"{result.name}.json"
        self._write(path, result)
        return path

    def find_result(self, name: str) -> ExperimentResult | None:
        """Return the result of an experiment; None if it has none."""
        path = self.path / f"{name}.json"
        return _load(ExperimentResult, path) if path.exists() else None

    def _has_observations(self) -> bool:
        plain = self.observations
        return plain.exists() or plain.with_name(f"{plain.name}.gz").exists()

    def _write(self, path: Path, record: Record) -> None:
        text = json.dumps(record.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
        write_atomically(text.encode("utf-8") + b"\n", path)


def _load(cls: type[R], path: Path) -> R:
    try:
        data = parse_json(read_limited(path, MOST_JSON_BYTES))
    except ValueError as error:
        raise FileError(f"{path} is not JSON ({error}): restore it, or remove it") from error
    return load_record(cls, data, str(path))
