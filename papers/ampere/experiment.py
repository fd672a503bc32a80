"""Define an experiment, the record of its result, and the statistics that criteria need.

    plan     settings → what is measured, with expected seconds
    analyse  lab → Findings, from kept observations alone
    draw     canvas, results of one or more devices → panels

Title, statement, criterion and limits of each are in ``table.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.records import Device, Record, Trial

if TYPE_CHECKING:
    from papers.ampere.lab import Lab
    from papers.ampere.plots import Canvas
    from papers.ampere.settings import Settings

Json = dict[str, Any]
Net = Mapping[str, Any]
"""A network as JSON: name, flops, duration_s, measured_j, and estimates_j by estimator."""

HELD, NOT_HELD, UNTESTED = "held", "did not hold", "could not be tested"
TRIAL_S = 1.05
"""Expected device time of a trial with energy, on an H200."""

TABLE: dict[str, Json] = tomllib.loads(Path(__file__).with_name("table.toml").read_text("utf-8"))
LIMITS: dict[str, Json] = {name: row.get("limits", {}) for name, row in TABLE.items()}


@dataclass(frozen=True)
class Work:
    """Something that is measured once; experiments that share it name it alike."""

    name: str
    trials: int
    seconds: float
    measure: Callable[[Lab], None]


def plan_trials(
    name: str, trials: Sequence[Trial], role: str, rounds: int = 1, trial_s: float = TRIAL_S
) -> Work:
    """Return the work of measuring trials under a role."""
    seconds = trial_s * rounds * len(trials)
    return Work(name, len(trials), seconds, lambda lab: lab.measure(trials, role, rounds))


@dataclass(frozen=True)
class Findings:
    """What an experiment found.

    Attributes:
        has_held: Whether the criterion is met.
        finding: One sentence with the numbers that decide it.
        numbers: Everything that the picture shows, as JSON.
        notes: What a reader has to know about the numbers.
        measured: How many of something were measured, how many were planned, and what they are;
            the criterion decides nothing before all of them were.
    """

    has_held: bool
    finding: str
    numbers: Json
    notes: Sequence[str] = ()
    measured: tuple[int, int, str] = (0, 0, "")

    def judge(self) -> tuple[str, str]:
        """Return the verdict and its sentence."""
        done, planned, what = self.measured
        if done < planned:
            return UNTESTED, f"Only {done} of {planned} {what} measured so far. {self.finding}"
        return HELD if self.has_held else NOT_HELD, self.finding


@dataclass(frozen=True)
class Result(Record):
    """The outcome of an experiment on a device, as its folder keeps it."""

    name: str
    title: str
    statement: str
    criterion: str
    verdict: str
    finding: str
    numbers: Mapping[str, Any]
    device: Device
    runtime: str
    covers: str
    provenance: str
    date: str
    is_quick: bool
    device_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The title with the paper's number."""
        kind = "Table 1" if self.name == "table1" else f"Fig. {self.name[3:]}"
        return f"{kind}: {self.title}"

    @property
    def device_label(self) -> str:
        """The name of the device, with the provenance of what was not measured."""
        label = "" if self.provenance == "measured" else f" ({self.provenance})"
        return self.device.name + label


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    Attributes:
        name: ``fig2`` ... ``table1``, as the paper numbers it.
        analyse: Returns what was found. Raises MissingError if too little was measured.
        draw: Draws results: that of this folder first, then those of other folders.
        plan: Lists what is measured after the evaluations of its families.
        shows_others: Whether its figure shows results of other folders.
    """

    name: str
    analyse: Callable[[Lab], Findings]
    draw: Callable[[Canvas, Sequence[Result]], None]
    plan: Callable[[Settings], Sequence[Work]] = lambda settings: ()
    shows_others: bool = False

    @property
    def families(self) -> list[str]:
        """Families whose evaluations it uses."""
        return list(TABLE[self.name].get("families", ()))


def correlate(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 if one side does not vary."""
    x, y = np.asarray(left, float), np.asarray(right, float)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 0.0


def correlate_ranks(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank."""

    def rank(values: Sequence[float]) -> list[float]:
        found = np.asarray(values, float)
        return [float(np.mean(np.flatnonzero(np.sort(found) == value))) for value in found]

    return correlate(rank(left), rank(right))


def list_errors(estimated: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Return the relative error of each estimate in percent; positive if it is too high."""
    return [100.0 * (e / m - 1.0) for e, m in zip(estimated, measured, strict=True)]


def compute_mape(errors_percent: Sequence[float]) -> float:
    """Return the mean absolute error."""
    return float(np.mean(np.abs(errors_percent)))


def list_net_errors(nets: Sequence[Net], estimator: str) -> list[float]:
    """Return an estimator's error in percent for each network that it estimated."""
    known = [net for net in nets if estimator in net["estimates_j"]]
    estimates_j = [net["estimates_j"][estimator] for net in known]
    return list_errors(estimates_j, [net["measured_j"] for net in known])


def compute_net_mape(nets: Sequence[Net], estimator: str) -> float:
    """Return an estimator's mean absolute error over networks, in percent."""
    return compute_mape(list_net_errors(nets, estimator))


def list_known(nets: Sequence[Net], names: Sequence[str]) -> list[str]:
    """Return the estimators that estimated every network."""
    return [name for name in names if all(name in net["estimates_j"] for net in nets)]
