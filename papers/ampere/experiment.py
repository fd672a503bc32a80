"""Define experiments: their settings, the record of a result, and the statistics of criteria.

    plan     settings → what is measured, with expected seconds
    analyse  lab → Findings, from kept observations alone
    draw     canvas, results of one or more devices → panels

Title, statement, criterion and limits of each are in ``table.toml``, their sizes in
``settings.toml``. The paper trains its convolutional networks with batches of 10. A large GPU then
waits for its host, and what is measured is the host. On a GPU the five-layer CNN, Transformers and
ResNets therefore have batches that keep it busy; Fig. 2 and 5 measure both. Other devices get the
batch of the paper. Architectures are ours, because the paper does not give them.

``AMPERE`` names the paper's method in results. The estimator behind it is ``subtractive``, or
``ampere`` if experiments are faithful to the paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from joulecast.estimators.subtractive.options import OURS as OUR_OPTIONS
from joulecast.estimators.subtractive.options import PAPER, SubtractiveOptions
from joulecast.features.evaluation import NO_PROBE, EvaluationPlan
from joulecast.records import Device, Record, Setup, Trial
from joulecast.views.words import label_provenance

if TYPE_CHECKING:
    from papers.ampere.lab import Lab
    from papers.ampere.plots import Canvas

Json = dict[str, Any]
Net = Mapping[str, Any]
"""A network as JSON: name, flops, duration_s, measured_j, and estimates_j by estimator."""
Floats = npt.NDArray[np.float64]

HELD, NOT_HELD, UNTESTED = "held", "did not hold", "could not be tested"
AMPERE, OURS, FLOPS = "subtractive", "additive" + NO_PROBE, "flops"
ESTIMATORS = (FLOPS, "flops-linear", AMPERE, OURS)
SHOWN = (FLOPS, AMPERE, OURS)
LABELS = {FLOPS: "proportional to FLOPs", AMPERE: "AMPERE", OURS: "ours"}
"""How findings and legends name estimators."""

TABLE, SIZES = (
    tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))
    for name in ("table.toml", "settings.toml")
)
LIMITS: dict[str, Json] = {name: row.get("limits", {}) for name, row in TABLE.items()}
PAPER_BATCH = 10
TRIAL_S = 1.05
"""Expected device time of a trial with energy, on an H200."""
_FLOPS_NETS = 7
# The paper's method finishes one curve after the other: ended early, it would lack whole curves.
_FAITHFUL_S = 900.0


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
    seconds = trial_s * rounds * len(trials)
    return Work(name, len(trials), seconds, lambda lab: lab.measure(trials, role, rounds))


@dataclass(frozen=True)
class Settings(Record):
    """Which of the sizes apply, and whether the paper's method has none of our deviations."""

    is_gpu: bool = False
    is_quick: bool = False
    is_faithful: bool = False

    @property
    def kind(self) -> str:
        return "gpu" if self.is_gpu else "small"

    @property
    def length(self) -> str:
        return "quick" if self.is_quick else "full"

    @property
    def paper_options(self) -> SubtractiveOptions:
        """How the paper's method fits curves and chooses points."""
        return PAPER if self.is_faithful else OUR_OPTIONS

    def choose(self, full: int, quick: int) -> int:
        return quick if self.is_quick else full

    def name_estimator(self, name: str = AMPERE) -> str:
        """Return the estimator that a name of results stands for."""
        return "ampere" if self.is_faithful and name == AMPERE else name

    def make_paper_setup(self, batch: int = PAPER_BATCH) -> Setup:
        """Return how the paper trains: with SGD in full precision; on a CPU with one thread."""
        return Setup(batch=batch, threads=0 if self.is_gpu else 1)

    def plan_family(self, family: str) -> EvaluationPlan:
        row = SIZES["families"][family]
        nets, repeated, ampere_s, ours_s = row[self.length]
        return EvaluationPlan(
            family,
            Setup(**row[self.kind]),
            tuple(row[f"{self.kind}_input"]),
            tuple(map(self.name_estimator, ESTIMATORS)),
            nets,
            _FAITHFUL_S if self.is_faithful else ampere_s,
            row["seed"],
            (("additive", ours_s),),
            repeated,
        )

    def describe_family(self, family: str) -> Work:
        plan = self.plan_family(family)
        repeated, ours_s = plan.repeated or 0, dict(plan.budgets)["additive"]
        whole = plan.nets + repeated + _FLOPS_NETS
        return Work(
            f"{family}: {plan.nets} test networks, {repeated} of them twice, {_FLOPS_NETS} "
            f"networks for {FLOPS}, campaigns of {self.name_estimator()} ({plan.seconds:.0f} s) "
            f"and additive ({ours_s:.0f} s)",
            whole + int(plan.seconds) + int(2 * ours_s),
            TRIAL_S * whole + plan.seconds + 1.3 * ours_s,
            lambda lab: lab.measure_family(family),
        )


@dataclass(frozen=True)
class Findings:
    """What an experiment found.

    Attributes:
        has_held: Whether the criterion is met.
        numbers: Everything that the picture shows, as JSON.
        parts: What the sentence says of each of several.
        words: What else the sentence has beside numbers.
        notes: What a reader has to know about the numbers.
        measured: How many of something were measured, how many were planned, and what they are;
            the criterion decides nothing before all of them were.
    """

    has_held: bool
    numbers: Json
    parts: Sequence[Mapping[str, Any]] = ()
    words: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    measured: tuple[int, int, str] = (0, 0, "")

    def judge(self, row: Json) -> tuple[str, str]:
        """Return the verdict, and one sentence as the row of the experiment words it."""
        parts = [row["part"].format(**one) for one in self.parts]
        values = {**self.numbers, **self.words, "parts": row.get("between", "; ").join(parts)}
        finding: str = row["finding"].format(**values)
        done, planned, what = self.measured
        if done < planned:
            return UNTESTED, f"Only {done} of {planned} {what} measured so far. {finding}"
        return HELD if self.has_held else NOT_HELD, finding


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
        kind = "Table 1" if self.name == "table1" else f"Fig. {self.name[3:]}"
        return f"{kind}: {self.title}"

    @property
    def device_label(self) -> str:
        """The name of the device, with the provenance of what was not measured."""
        return self.device.name + label_provenance(self.provenance)


Analyse = Callable[["Lab"], Findings]


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    Attributes:
        name: ``fig2`` ... ``table1``, as the paper numbers it.
        analyse: Returns what was found. Raises MissingError if too little was measured.
        draw: Draws the results of a canvas.
        plan: Lists what is measured after the evaluations of its families.
    """

    name: str
    analyse: Analyse
    draw: Callable[[Canvas], None]
    plan: Callable[[Settings], Sequence[Work]] = lambda settings: ()

    @property
    def families(self) -> list[str]:
        return list(TABLE[self.name].get("families", ()))


def correlate(left: Floats, right: Floats) -> float:
    """Return Pearson's correlation; 0 if one side does not vary."""
    return float(np.corrcoef(left, right)[0, 1]) if np.ptp(left) and np.ptp(right) else 0.0


def list_errors(estimated: npt.ArrayLike, measured: npt.ArrayLike) -> Floats:
    """Return the relative error of each estimate in percent; positive if it is too high."""
    errors: Floats = 100.0 * (np.asarray(estimated, float) / np.asarray(measured, float) - 1.0)
    return errors


def compute_mape(errors_percent: Floats) -> float:
    return float(np.abs(errors_percent).mean())


def list_net_errors(nets: Sequence[Net], estimator: str) -> Floats:
    """Return an estimator's error in percent for each network that it estimated."""
    known = [net for net in nets if estimator in net["estimates_j"]]
    estimates_j = [net["estimates_j"][estimator] for net in known]
    return list_errors(estimates_j, [net["measured_j"] for net in known])


def compute_net_mape(nets: Sequence[Net], estimator: str) -> float:
    return compute_mape(list_net_errors(nets, estimator))


def list_known(nets: Sequence[Net], names: Sequence[str] = SHOWN) -> list[str]:
    """Return the estimators that estimated every network."""
    return [name for name in names if all(name in net["estimates_j"] for net in nets)]
