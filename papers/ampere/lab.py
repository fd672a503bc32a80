"""Measure into a folder, and find there what was measured.

    FOLDER/device.json          device, runtime, meter and settings that everything belongs to
    FOLDER/observations.jsonl   every observation, on the disk before the next one is measured
    FOLDER/fig2.json, .svg      the result of an experiment, and its picture
    FOLDER/summary.md           all results on one page

Finished observations and large results are kept compressed, with ``.xz`` added to their names.
Observations of an experiment have the run tag ``reproduce.ROLE``. Those of a family's evaluation
have the tags of ``joulecast evaluate``, so that experiments share them. A trial that the folder
holds under its role is not measured again, and neither is one that the device refused.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks.common import read_bytes
from joulecast.campaign import ObservationLog, Progress, run_campaign
from joulecast.campaign.trial_log import TrialLog
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Estimator, Target
from joulecast.features import evaluation
from joulecast.features.evaluate import Evaluation
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.measurer import TrialMeasurer
from joulecast.records import Device, Observation, Profile, Record, Trial, load_record
from joulecast.system import errors
from joulecast.system.errors import FileError, InputError, MissingError
from joulecast.system.files import parse_json, write_atomically
from papers.ampere.experiment import AMPERE, Json, Settings

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Identity(Settings):
    """What the observations of a folder belong to."""

    device: Device
    runtime: str
    covers: str
    provenance: str

    def make_profile(self, observations: Sequence[Observation] = ()) -> Profile:
        own = (self.device, self.runtime, self.covers, self.provenance)
        return Profile(*own, tuple(observations))

    def describe(self) -> list[str]:
        """Return what must be equal to continue; units of a device differ more than estimates."""
        flags = {"quick": self.is_quick, "faithful": self.is_faithful}
        return [
            f"name {self.device.name}",
            f"unit {self.device.unit}",
            *(f"{name} {getattr(self, name)}" for name in ("runtime", "covers", "provenance")),
            *(f"{'' if is_given else 'no '}--{name}" for name, is_given in flags.items()),
            f"profile {self.make_profile().key}",
        ]


class Folder(ObservationLog):
    """A folder of results, whose observations are the log of every campaign; each starts afresh.

    A process that is killed while it writes leaves at most one incomplete line at the end, which is
    removed when the observations are read. ``check_time`` is called after every observation, and
    may end the run.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, ""
        self.check_time: Callable[[], None] = lambda: None
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: give --out a folder")

    def claim(self, new: Identity) -> None:
        """Create the folder for a device, or raise InputError if it belongs to another one.

        A folder without observations belongs to no device: its first run failed early.
        """
        if not list(self.path.glob("observations.jsonl*")):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                text = f"cannot create {self.path} ({error}): give another --out"
                raise FileError(text) from error
            self.save(new, "device")
        known = self.read_identity()
        for was, given in zip(known.describe(), new.describe(), strict=True):
            if was != given:
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
        plain = self.path / f"{name}.json"
        for path in filter(Path.exists, (plain, plain.with_suffix(".json.xz"))):
            return _decode(kind, read_bytes(path), str(path))
        return None

    def save(self, record: Record, name: str) -> None:
        text = json.dumps(record.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
        write_atomically(text.encode("utf-8") + b"\n", self.path / f"{name}.json")

    @cached_property
    def observations(self) -> list[Observation]:
        """Every observation, in the order they were made."""
        found = []
        packed = self._lines.with_suffix(".jsonl.xz")
        for path in filter(Path.exists, (packed, self._lines)):
            data = read_bytes(path)
            if path != packed and not data.endswith(b"\n"):
                data = data[: data.rfind(b"\n") + 1]
                os.truncate(path, len(data))
            for number, line in enumerate(data.splitlines(), start=1):
                found.append(_decode(Observation, line, f"line {number} of {path}"))
        return found

    @property
    def _lines(self) -> Path:
        return self.path / "observations.jsonl"

    def select(self, run: str) -> Folder:
        """Return the same folder, of which only observations with a run tag are loaded."""
        other = copy.copy(self)
        other.run, other.observations = run, self.observations
        return other

    def load_observations(self, profile_key: str = "") -> tuple[Observation, ...]:
        """Return the observations of the run tag; all have the folder's profile."""
        return tuple(one for one in self.observations if self.run in ("", one.run))

    def add_observation(self, observation: Observation) -> None:
        line = json.dumps(observation.to_dict(), separators=(",", ":"), allow_nan=False)
        known = self.observations
        try:
            with self._lines.open("ab") as file:
                file.write(line.encode("utf-8") + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"cannot write {self._lines} ({error}): give another --out") from error
        known.append(observation)
        self.check_time()


def _decode(kind: type[R], text: bytes, where: str) -> R:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise FileError(f"{where} is not JSON ({error}): restore or remove it") from error
    return load_record(kind, values, where)


def list_energies(observations: Iterable[Observation]) -> list[float]:
    runs = [(one.energy_j or 0.0, one.trial.execution) for one in observations]
    return [energy_j / execution.steps / execution.copies for energy_j, execution in runs]


def find_median_j(observations: Iterable[Observation]) -> float:
    return median(list_energies(observations))


@dataclass
class Lab:
    """A folder, and the device that is measured into it.

    Attributes:
        measurer: Measures trials; None if only kept observations may be used.
        on_progress: Called before every measurement.
        celeba: Folder of CelebA's images; empty if there are none.
        until_s: When nothing more is measured, on the clock of the measurer.
        failures: What failed in this process, with the reason.
    """

    folder: Folder
    measurer: TrialMeasurer | None = None
    on_progress: ReportProgress = lambda report: None
    celeba: str = ""
    until_s: float = math.inf
    failures: list[str] = field(default_factory=list)
    _evaluations: dict[str, Evaluation] = field(default_factory=dict)
    _is_warm: bool = False

    def __post_init__(self) -> None:
        self.settings, self.folder.check_time = self.folder.read_identity(), self._check_time

    @property
    def device(self) -> TrialMeasurer:
        if self.measurer is None:
            raise MissingError("no device is open: leave --redraw out to measure")
        return self.measurer

    def _check_time(self) -> None:
        if self.device.now() >= self.until_s:
            raise errors.BudgetSpentError("the device time is spent: run it again to continue")

    def report(self, done: float, total: float, what: str, detail: str) -> None:
        """Say what comes next; raise BudgetSpentError if no time is left for it."""
        self._check_time()
        self.on_progress(ProgressReport(done, total, what, detail))

    def list_role(self, role: str) -> tuple[Observation, ...]:
        """Return the kept observations of a role in the order they were made."""
        return self.folder.select(f"reproduce.{role}").load_observations()

    def find(self, trials: Iterable[Trial], role: str) -> dict[str, list[Observation]]:
        """Return the kept observations with energy of each trial, by its key; none if refused."""
        found: dict[str, list[Observation]] = {trial.key: [] for trial in trials}
        for one in self.list_role(role):
            if one.energy_j is not None and one.trial.key in found:
                found[one.trial.key].append(one)
        return found

    def measure(self, trials: Sequence[Trial], role: str, rounds: int = 1) -> None:
        """Measure the energy of trials, in rounds of a new order each, one window a round."""
        seen: Counter[str] = Counter()
        for one in self.list_role(role):
            seen[one.trial.key] += rounds if one.refusal else 1
        windows = []
        for number in range(rounds):
            order = [trial for trial in trials if seen[trial.key] <= number]
            random.Random(f"{role}.{number}").shuffle(order)
            windows += order
        measurer = self.device.change_run(f"reproduce.{role}", rounds=1)
        refused: set[str] = set()
        for done, trial in enumerate(windows):
            name = trial.network.name or role
            self.report(done, len(windows), f"trials of {role}", name)
            if trial.key in refused:
                continue
            self._warm_up(trial)
            # Without earlier windows, which it would repeat until they agree.
            log = TrialLog(measurer, self.folder, [], keeps_refusals=True)
            try:
                if log.measure(trial, True, name) is None:
                    refused.add(trial.key)
            except errors.ContaminatedError as error:
                self.failures.append(f"a window of {name}: {error}")
            self.failures += log.skipped

    def _warm_up(self, trial: Trial) -> None:
        """Run a first load, which is slower than all later ones, and discard its result."""
        if not self._is_warm:
            self._is_warm = True
            with suppress(errors.MeasurementError, errors.NetError):
                self.device.time(trial)

    def run_campaign(self, estimator: str, target: Target, role: str, points: int) -> None:
        """Let an estimator choose what is measured, until it has a number of points."""
        method, log = find_estimator(estimator), self.folder.select(f"reproduce.{role}")
        if method.propose(target, log.load_observations()).points >= points:
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
        measurer = self.device.change_run(self.device.run, rounds=1)
        plan = self.settings.plan_family(family)
        self.failures += evaluation.measure_evaluation(
            measurer, self.folder, plan, self.on_progress
        )

    def evaluate(self, family: str) -> Evaluation:
        """Evaluate estimators on the kept observations of a family, or raise MissingError."""
        if family not in self._evaluations:
            plan = self.settings.plan_family(family)
            profile = self.settings.make_profile(self.folder.observations)
            if not evaluation.EvaluationLog(plan, profile).list_for(evaluation.PASSES[0]):
                raise MissingError("no test network was measured yet")
            self._evaluations[family] = evaluation.evaluate_stored(profile, plan)
        return self._evaluations[family]

    def list_nets(self, family: str) -> list[Json]:
        """Return the test networks of a family with all estimates, or raise MissingError."""
        names = {self.settings.name_estimator(): AMPERE}
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

    def find_training(self, family: str, name: str) -> evaluation.TrainingObservations:
        """Return the kept observations that an estimator is fitted to in an evaluation."""
        profile = self.settings.make_profile(self.folder.observations)
        log = evaluation.EvaluationLog(self.settings.plan_family(family), profile)
        return log.find_training(self.settings.name_estimator(name))

    def find_method(self, name: str) -> Estimator:
        return find_estimator(self.settings.name_estimator(name).removesuffix(evaluation.NO_PROBE))
