"""Measure into a folder, and find there what was measured.

    FOLDER/device.json          device, runtime, meter and settings that everything belongs to
    FOLDER/observations.jsonl   every observation, on the disk before the next one is measured
    FOLDER/fig2.json, .svg      the result of an experiment, and its picture
    FOLDER/summary.md           all results on one page

Observations of an experiment have the run tag ``reproduce.ROLE``. Those of a family's evaluation
have the tags of ``joulecast evaluate``, so that experiments share them. A trial that the folder
holds under its role is not measured again, and neither is one that the device refused.
"""

from __future__ import annotations

import copy
import gzip
import json
import lzma
import os
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from joulecast.campaign import Progress, run_campaign
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.features import evaluation
from joulecast.features.evaluate import Evaluation
from joulecast.features.evaluation import (
    EvaluationLog,
    TrainingObservations,
    measure_evaluation,
)
from joulecast.features.measurers import lock_device, open_any_measurer
from joulecast.features.options import MeasureOptions
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.measurer import TrialMeasurer
from joulecast.measurer.device_lock import is_device_lost
from joulecast.records import Device, Observation, Profile, Record, Trial, load_record
from joulecast.system import errors
from joulecast.system.errors import FileError, InputError, MissingError
from joulecast.system.files import MOST_UNPACKED_BYTES, parse_json, read_limited, write_atomically
from papers.ampere.experiment import Json
from papers.ampere.settings import AMPERE, Settings

_LONGEST_REASON = 300
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Identity(Record):
    """What the observations of a folder belong to."""

    device: Device
    runtime: str
    covers: str
    provenance: str
    is_gpu: bool
    is_quick: bool
    is_faithful: bool = False

    def make_profile(self, observations: Sequence[Observation] = ()) -> Profile:
        """Return the profile of observations of the folder."""
        own = (self.device, self.runtime, self.covers, self.provenance)
        return Profile(*own, tuple(observations))


class ObservationFile:
    """Observations in a file of lines, as the ``ObservationLog`` of a campaign.

    A process that is killed while it writes leaves at most one incomplete line at the end, which is
    removed when the file is opened again. A file beside it that ends in ``.gz`` is read first: that
    is how finished ones are kept. Raises FileError if a complete line is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, ""
        self._by_profile: dict[str, list[Observation]] = {}
        packed = path.with_name(f"{path.name}.gz")
        if packed.exists():
            try:
                with gzip.open(packed) as file:
                    self._read(file.read(MOST_UNPACKED_BYTES), packed)
            except (OSError, EOFError, zlib.error) as error:
                raise FileError(f"{packed} is damaged ({error}): restore it") from error
        if path.exists():
            data = read_limited(path, MOST_UNPACKED_BYTES)
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                os.truncate(path, len(whole))
            self._read(whole, path)

    def select(self, run: str) -> ObservationFile:
        """Return the same file, of which only observations with a run tag are loaded."""
        other = copy.copy(self)
        other.run = run
        return other

    def load_observations(self, profile_key: str) -> tuple[Observation, ...]:
        """Return the observations of a profile in the order they were made."""
        found = self._by_profile.get(profile_key, ())
        return tuple(one for one in found if self.run in ("", one.run))

    def add_observation(self, observation: Observation) -> None:
        """Write an observation to the disk."""
        line = json.dumps(observation.to_dict(), separators=(",", ":"), allow_nan=False)
        try:
            with self.path.open("ab") as file:
                file.write(line.encode("utf-8") + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"cannot write {self.path} ({error}): give another --out") from error
        self._keep(observation)

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return nothing: every campaign of an experiment starts afresh."""
        return None

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Discard the fit: the observations are what is kept."""

    def _read(self, lines: bytes, path: Path) -> None:
        for number, line in enumerate(lines.splitlines(), start=1):
            where = f"line {number} of {path}"
            try:
                values = parse_json(line)
            except ValueError as error:
                raise FileError(f"{where} is damaged ({error}): restore or remove it") from error
            self._keep(load_record(Observation, values, where))

    def _keep(self, one: Observation) -> None:
        key = Profile(one.device, one.runtime, one.covers, one.provenance).key
        self._by_profile.setdefault(key, []).append(one)


@dataclass(frozen=True)
class Folder:
    """A folder of results."""

    path: Path

    def __post_init__(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: give --out a folder")

    def claim(self, new: Identity) -> None:
        """Create the folder for a device, or raise InputError if it belongs to another one.

        A folder without observations belongs to no device: its first run failed early.
        """
        if not list(self.path.glob("observations.jsonl*")):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(
                    f"cannot create {self.path} ({error}): give another --out"
                ) from error
            self.save(new, "device")
        known = self.read_identity()
        names = ("device.name", "device.unit", "runtime", "covers", "provenance")
        for name in (*names, "is_quick", "is_faithful", "key"):
            was, given = (_describe(one, name) for one in (known, new))
            if was != given:
                # Units of a device differ by more than estimates do.
                raise InputError(
                    f"{self.path} holds results of {known.device.name} with {was}, not {given}: "
                    "continue as it was begun, or give another --out"
                )

    def read_identity(self) -> Identity:
        """Return what the folder belongs to; raise MissingError if nothing was measured into it."""
        found = self.find(Identity, "device")
        if found is None:
            raise MissingError(
                f"{self.path} holds no measurements: run it without --redraw first, or give the "
                "--out of an earlier run"
            )
        return found

    def find(self, kind: type[R], name: str) -> R | None:
        """Return a record of the folder; None if it does not exist."""
        path = self.path / f"{name}.json"
        # Large results are kept compressed.
        packed = path.with_suffix(".json.xz")
        if not path.exists() and not packed.exists():
            return None
        try:
            if path.exists():
                data = parse_json(read_limited(path, MOST_UNPACKED_BYTES))
            else:
                data = parse_json(lzma.decompress(packed.read_bytes()))
        except (ValueError, lzma.LZMAError) as error:
            raise FileError(f"{path} is not JSON ({error}): restore or remove it") from error
        return load_record(kind, data, str(path))

    def save(self, record: Record, name: str) -> None:
        """Write a record as JSON."""
        text = json.dumps(record.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
        write_atomically(text.encode("utf-8") + b"\n", self.path / f"{name}.json")


def _describe(one: Identity, name: str) -> str:
    if name == "key":
        return f"profile {one.make_profile().key}"
    if name.startswith("is_"):
        return f"{'' if getattr(one, name) else 'no '}--{name[3:]}"
    value = getattr(one.device, name[7:]) if name.startswith("device.") else getattr(one, name)
    return f"{name.removeprefix('device.')} {value}"


@dataclass
class Lab:
    """A folder, and the device that is measured into it.

    Attributes:
        measurer: Measures trials; None if only kept observations may be used.
        on_progress: Called before every measurement.
        celeba: Folder of CelebA's images; empty if there are none.
        failures: What failed in this process, with the reason.
    """

    folder: Folder
    measurer: TrialMeasurer | None = None
    on_progress: ReportProgress = lambda report: None
    celeba: str = ""
    failures: list[str] = field(default_factory=list)
    _evaluations: dict[str, Evaluation] = field(default_factory=dict)
    _is_warm: bool = False

    def __post_init__(self) -> None:
        own = self.identity = self.folder.read_identity()
        self.settings = Settings(own.is_gpu, own.is_quick, own.is_faithful)
        self.log = ObservationFile(self.folder.path / "observations.jsonl")
        self.key = own.make_profile().key

    @property
    def device(self) -> TrialMeasurer:
        """The open device."""
        if self.measurer is None:
            raise MissingError("no device is open: leave --redraw out to measure")
        return self.measurer

    def report(self, done: float, total: float, what: str, detail: str) -> None:
        """Say what comes next; raise BudgetSpentError if no time is left for it."""
        getattr(self.device, "check_time", lambda: None)()
        self.on_progress(ProgressReport(done, total, what, detail))

    def list_role(self, role: str) -> tuple[Observation, ...]:
        """Return the kept observations of a role in the order they were made."""
        return self.log.select(f"reproduce.{role}").load_observations(self.key)

    def list_all(self) -> tuple[Observation, ...]:
        """Return all kept observations."""
        return self.log.load_observations(self.key)

    def find(self, trials: Iterable[Trial], role: str) -> dict[str, list[Observation]]:
        """Return the kept observations with energy of each trial, by its key; none if refused."""
        found: dict[str, list[Observation]] = {trial.key: [] for trial in trials}
        for one in self.list_role(role):
            if one.energy_j is not None and one.trial.key in found:
                found[one.trial.key].append(one)
        return found

    def measure(self, trials: Sequence[Trial], role: str, rounds: int = 1) -> None:
        """Measure the energy of trials, in rounds of a new order each, one window a round."""
        seen: dict[str, int] = {}
        for one in self.list_role(role):
            seen[one.trial.key] = seen.get(one.trial.key, 0) + (rounds if one.refusal else 1)
        windows = []
        for number in range(rounds):
            order = [trial for trial in trials if seen.get(trial.key, 0) <= number]
            random.Random(f"{role}.{number}").shuffle(order)
            windows += order
        refused: set[str] = set()
        for done, trial in enumerate(windows):
            self.report(done, len(windows), f"trials of {role}", trial.network.name or role)
            if trial.key not in refused and not self._measure_window(trial, role):
                refused.add(trial.key)

    def _measure_window(self, trial: Trial, role: str) -> bool:
        """Measure one window; return False if the device refuses the trial."""
        measurer = self.device.change_run(f"reproduce.{role}", rounds=1)
        name = trial.network.name or role
        self._warm_up(trial)
        try:
            self.log.add_observation(measurer.measure(trial))
        except (errors.DeviceAwayError, errors.MeterLostError):
            raise
        except errors.ContaminatedError as error:
            self.failures.append(f"a window of {name}: {error}")
        except (errors.MeasurementError, errors.NetError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
            self.log.add_observation(measurer.make_refusal(trial, reason))
            self.failures.append(f"{name}: {reason}")
            if is_device_lost(error):
                raise errors.DeviceLostError(
                    f"{self.identity.device.name} failed at {name} ({reason}); this trial will be "
                    "left out: run the same command again to continue"
                ) from error
            return False
        return True

    def _warm_up(self, trial: Trial) -> None:
        """Run a first load, which is slower than all later ones, and discard its result."""
        if not self._is_warm:
            self._is_warm = True
            with suppress(errors.MeasurementError, errors.NetError):
                self.device.time(trial)

    def run_campaign(self, estimator: str, target: Target, role: str, points: int) -> None:
        """Let an estimator choose what is measured, until it has a number of points."""
        method, log = find_estimator(estimator), self.log.select(f"reproduce.{role}")
        if method.propose(target, self.list_role(role)).points >= points:
            # A campaign that has ended would measure doubtful points again each time.
            return

        def report(progress: Progress) -> None:
            done = min(progress.points, points)
            self.on_progress(ProgressReport(done, points, f"points of {role}", progress.reason))

        self._warm_up(Trial(target.network, target.setup))
        measurer = self.device.change_run(log.run, rounds=1)
        try:
            done = run_campaign(measurer, log, method, target, points=points, on_progress=report)
        except errors.ContaminatedError as error:
            self.failures.append(f"{role}: {error}")
        else:
            self.failures += [f"{role} skipped {reason}" for reason in done.skipped]

    def measure_family(self, family: str) -> None:
        """Measure what the evaluation of a family lacks."""
        measurer = self.device.change_run(self.device.run, rounds=1)
        plan = self.settings.plan_family(family)
        failed = measure_evaluation(measurer, self.log, plan, self.on_progress)
        self.failures += failed

    def evaluate(self, family: str) -> Evaluation:
        """Evaluate estimators on the kept observations of a family, or raise MissingError."""
        if family not in self._evaluations:
            plan = self.settings.plan_family(family)
            first_pass = f"{evaluation.name_evaluation(plan, self.key)}.test1"
            if not any(one.run == first_pass for one in self.list_all()):
                raise MissingError("no test network was measured yet")
            profile = self.identity.make_profile(self.list_all())
            self._evaluations[family] = evaluation.evaluate_stored(profile, plan)
        return self._evaluations[family]

    def list_nets(self, family: str) -> list[Json]:
        """Return the test networks of a family with all estimates, or raise MissingError."""
        names = {self.settings.ampere: AMPERE}
        return [
            {
                "name": net.name,
                "flops": net.flops,
                "duration_s": net.measured_s,
                "measured_j": net.measured_j,
                "estimates_j": {names.get(n, n): one.energy_j for n, one in net.estimates.items()},
            }
            for net in self.evaluate(family).nets
        ]

    def find_nets(self, family: str) -> list[Json]:
        """Return the test networks of a family; none if too little was measured."""
        with suppress(MissingError):
            return self.list_nets(family)
        return []

    def describe_family(self, family: str) -> tuple[float, list[str]]:
        """Return the device time of its campaigns, and notes about noise and what is missing."""
        try:
            found = self.evaluate(family)
        except MissingError as error:
            return 0.0, [f"{family}: {error}."]
        notes = [f"{family}: not measured yet: {what}." for what in found.missing]
        if found.noise_percent is not None:
            noise = f"{found.noise_percent:.1f} % (median)"
            notes.insert(0, f"{family}: two measurements of the same network differ by {noise}.")
        if found.left_out:
            notes.append(f"{family}: left out: {'; '.join(found.left_out[:3])}.")
        # Estimators that share a campaign have the same time.
        return sum({one.device_seconds for one in found.scores}), notes

    def find_training(self, family: str, estimator: str) -> TrainingObservations:
        """Return the kept observations that an estimator is fitted to in an evaluation."""
        plan = self.settings.plan_family(family)
        name = self.settings.ampere if estimator == AMPERE else estimator
        profile = self.identity.make_profile(self.list_all())
        return EvaluationLog(plan, profile).find_training(name)

    def name_method(self, estimator: str) -> str:
        """Return the estimator that a name of results stands for."""
        name = self.settings.ampere if estimator == AMPERE else estimator
        return name.removesuffix(evaluation.NO_PROBE)


@contextmanager
def open_device(
    folder: Folder, where: MeasureOptions, settings: Settings, until_s: float | None
) -> Iterator[TrialMeasurer]:
    """Open a device, and claim the folder for it; after ``until_s`` it measures nothing more."""
    measurer = open_any_measurer(where)
    runtime, meter = measurer.runtime, measurer.meter
    own = (runtime.device, runtime.name, meter.covers, meter.provenance)
    folder.claim(Identity(*own, settings.is_gpu, settings.is_quick, settings.is_faithful))
    with lock_device(where.on), measurer as opened:
        limited = _LimitedMeasurer(opened, opened.now() + until_s) if until_s else opened
        yield cast(TrialMeasurer, limited)


class _LimitedMeasurer:
    """A measurer that raises BudgetSpentError after a moment of its clock."""

    def __init__(self, inner: TrialMeasurer, until_s: float) -> None:
        self._inner, self._until_s = inner, until_s

    def __getattr__(self, name: str) -> Any:
        if name in ("measure", "time", "measure_idle"):
            self.check_time()
        return getattr(self._inner, name)

    def change_run(self, run: str, rounds: int | None = None) -> _LimitedMeasurer:
        return _LimitedMeasurer(self._inner.change_run(run, rounds), self._until_s)

    def check_time(self) -> None:
        if self._inner.now() >= self._until_s:
            raise errors.BudgetSpentError("the device time is spent: run it again to continue")
