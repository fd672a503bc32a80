"""Runs: how long they are, on how many GPUs, what they may take, and what they cost.

The length of a run is a number of steps, or of epochs over a number of samples. An energy budget:

    50%                 a share of what the original network takes
    5J/step, 2Wh/run    energy of one step, or of the whole run
    5mJ/inference       energy of one inference, which is a step without training
    5J                  of the run if its length is given, else of one step
    2Wh, 3kJ            of the run; refused without a length

The cost adds up training, evaluation, waiting for data, and a sweep of equal runs. Errors of the
parts, and of the runs of a sweep, are common to all of them: they have the same network, device and
profile. Intervals are therefore added up end by end and do not shrink with the number of runs.

A loader with worker processes loads the next batches while a step runs, so the device waits only
where a batch takes longer to load than to train. Without workers the training process itself loads
each batch, and the device waits all the time.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from joulecast.features.arguments import MAX_COUNT
from joulecast.records import Estimate, Json, Setup
from joulecast.records.codec import Record, not_stored
from joulecast.system.errors import ArgumentError, InputError, arg
from joulecast.system.units import (
    co2e_g,
    format_energy,
    format_share,
    joules_to_kwh,
    parse_energy,
    parse_grid,
    parse_price,
    parse_share,
    price_energy,
)

MOST_GPUS = 16
"""GPUs of one machine; links between machines are not modelled."""
DATA = "data"
# Other ways to train on several GPUs, as people call them.
_NOT_MODELLED = {
    "tensor": "tensor parallelism",
    "pipeline": "pipeline parallelism",
    "fsdp": "FSDP",
    "zero": "ZeRO",
    "expert": "expert parallelism",
    "sequence": "sequence parallelism",
    "context": "context parallelism",
}
_PERIODS = ("step", "run")
_SPELLINGS = {"inference": "step"}
_EXAMPLES = "give a share like 50%, or energy like 5J/step or 0.5Wh/run"
# A single step does not take watt-hours or kilojoules.
_RUN_UNITS = re.compile(r"([kKMGT][jJ]|[wW][hH])$")
_MOST_BATCHES = 200
_MOST_SECONDS = 5.0


@dataclass(frozen=True)
class RunLength(Record):
    """The length of a training run: steps, or epochs over a number of samples.

    Without either, energies and durations are those of one step.
    """

    steps: int | None = None
    epochs: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) != (self.samples is None):
            raise ArgumentError(
                f"{arg('epochs')} and {arg('samples')} belong together: give both, or "
                f"{arg('steps')}"
            )
        if self.steps is not None and self.epochs is not None:
            raise ArgumentError(
                f"a run has one length: give {arg('steps')}, or {arg('epochs')} and "
                f"{arg('samples')}"
            )
        for name in ("steps", "epochs", "samples"):
            count = getattr(self, name)
            if count is not None and not 1 <= count <= MAX_COUNT:
                raise ArgumentError(
                    f"{arg(name)} is {count}: give a whole number from 1 to {MAX_COUNT:,}"
                )

    def count_steps(self, batch: int) -> int:
        """Return the number of steps with so many samples; the last of an epoch may be smaller."""
        if self.epochs is None or self.samples is None:
            return self.steps or 1
        steps = self.epochs * math.ceil(self.samples / batch)
        if steps > MAX_COUNT:
            raise InputError(f"the run has {steps:,} steps: give at most {MAX_COUNT:,}")
        return steps

    @property
    def is_run(self) -> bool:
        """Whether a length was given."""
        return self.steps is not None or self.epochs is not None


@dataclass(frozen=True)
class ParallelOptions:
    """On how many equal GPUs of one machine a net is trained.

    Attributes:
        parallel: How they share the work: ``data``, as DistributedDataParallel does. Each GPU has
            a batch of its own, of the size ``batch``.
        link_gb_s: Bandwidth from one GPU to the others in one direction, instead of the
            catalogue's.
    """

    gpus: int = 1
    parallel: str = ""
    link_gb_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MOST_GPUS:
            raise InputError(
                f"gpus is {self.gpus}: give a whole number from 1 to {MOST_GPUS}, the GPUs of one "
                "machine"
            )
        if self.parallel not in ("", DATA):
            name = _NOT_MODELLED.get(self.parallel.lower())
            unknown = f"there is no parallelism {self.parallel!r}"
            refused = f"{name} is not modelled yet" if name else unknown
            raise ArgumentError(
                f"{refused}: give {arg('parallel', DATA)}, which is what DistributedDataParallel "
                "does"
            )
        if self.gpus > 1 and not self.parallel:
            raise ArgumentError(
                f"{self.gpus} GPUs have to share the work: give {arg('parallel', DATA)}"
            )

    @classmethod
    def of(cls, gpus: int | None, parallel: str, link_gb_s: float | None) -> ParallelOptions:
        """Return the options of a verb, which belong to several GPUs only."""
        for name, value in (("parallel", parallel), ("link_gb_s", link_gb_s)):
            if value and gpus is None:
                raise ArgumentError(f"{arg(name)} needs {arg('gpus')}")
        return cls(gpus or 1, parallel, link_gb_s)

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bandwidth from one GPU to the others in one direction; None for the catalogue's."""
        return None if self.link_gb_s is None else 1e9 * self.link_gb_s


# ---------------------------------------------------------------------------------------------
# Budgets


@dataclass(frozen=True)
class EnergyBudget(Record):
    """The most energy that a network may take.

    Attributes:
        limit_j: Energy of a step or of a whole run; None if the budget is a share.
    """

    limit_j: float | None = None
    share: float | None = None  # share of the energy that the original network takes
    per: str = "step"  # step or run: the period that limit_j covers
    text: str = not_stored("", compare=False)  # the budget as the user wrote it

    def __post_init__(self) -> None:
        if (self.limit_j is None) == (self.share is None):
            raise InputError(f"a budget is either an energy or a share: {_EXAMPLES}")
        amount = self.limit_j if self.share is None else self.share
        if not amount or amount < 0 or not math.isfinite(amount):
            raise InputError(f"the budget is {self.text or amount}: give more than 0, like 50%")
        if self.per not in _PERIODS:
            raise InputError(f"the budget is per {self.per!r}: give one per step or per run")

    def __str__(self) -> str:
        return self.describe()

    def describe(self, step: str = "step") -> str:
        """Return it in words; ``step`` is what one step is called."""
        if self.share is not None:
            return f"{format_share(self.share)} of the original"
        return f"{format_energy(self.limit_j or 0.0)} per {step if self.per == 'step' else 'run'}"

    def limit(self, original_j: float) -> float:
        """Return the most energy allowed if the original network takes ``original_j``."""
        return self.share * original_j if self.share is not None else self.limit_j or 0.0

    def to_step(self, steps: int) -> EnergyBudget:
        """Return the same budget for one step of a run with ``steps`` steps."""
        if self.per == "step" or self.limit_j is None:
            return replace(self, per="step")
        return replace(self, limit_j=self.limit_j / steps, per="step")


def parse_budget(text: str, length: RunLength | None = None) -> EnergyBudget:
    """Return the budget of a text like ``50%``, ``5J/step`` or ``2Wh/run``."""
    if not isinstance(text, str):
        raise InputError(f"the budget is {text!r}: {_EXAMPLES}, as text")
    stripped, is_run = text.strip(), length is not None and length.is_run
    default_period = "run" if is_run else "step"
    try:
        if stripped.endswith("%"):
            share = parse_share(stripped, math.inf)
            return EnergyBudget(share=share, per=default_period, text=stripped)
        amount, slash, per = (part.strip() for part in stripped.partition("/"))
        per = _SPELLINGS.get(per, per)
        energy_j = parse_energy(amount)
    except InputError as error:
        raise InputError(f"{text!r} is not a budget ({error}): {_EXAMPLES}") from error
    if slash and per not in _PERIODS:
        raise InputError(f"{text!r} is not a budget: {_EXAMPLES}")
    if not is_run and (per == "run" or (not per and _RUN_UNITS.search(amount))):
        raise InputError(
            f"{text!r} is for a run of unknown length: give {arg('steps')}, or {arg('epochs')} and "
            f"{arg('samples')}; for one step write {amount}/step"
        )
    return EnergyBudget(energy_j, per=per or default_period, text=stripped)


# ---------------------------------------------------------------------------------------------
# Costs


@dataclass(frozen=True)
class LoadingTime(Record):
    """What a loader takes on this machine."""

    batch_s: float  # when nothing else runs, without the first one
    batches: int
    workers: int = 0  # processes that load beside the training process


@dataclass(frozen=True)
class DataWait(Record):
    """How long the device waits for each batch, and what it draws meanwhile."""

    loading: LoadingTime
    wait_s: float  # what does not hide behind the step
    idle_w: float | None = None


def time_loader(
    loader: Iterable[Any], batch: int, clock: Callable[[], float] = time.perf_counter
) -> LoadingTime:
    """Load batches for a few seconds and return what one takes."""
    own_batch = getattr(loader, "batch_size", None)
    if own_batch is not None and own_batch != batch:
        raise InputError(
            f"the loader gives batches of {own_batch}, but the estimate is for {batch}: give "
            f"{arg('batch', own_batch)}, or another loader"
        )
    batches = iter(loader)
    count, started_s, ended_s = -1, 0.0, 0.0
    # The first batch also starts the workers.
    for count, _ in enumerate(batches):
        ended_s = clock()
        started_s = started_s if count else ended_s
        if count == _MOST_BATCHES or ended_s - started_s > _MOST_SECONDS:
            break
    if count < 1:
        raise InputError(f"the loader gave {count + 1} batches: give one with at least 2")
    workers = int(getattr(loader, "num_workers", 0))
    return LoadingTime((ended_s - started_s) / count, count, workers)


def find_wait(
    loading: LoadingTime, step_s: float, setup: Setup, idle_w: float | None = None
) -> DataWait:
    """Return how long a device waits for each batch."""
    hidden_s = step_s / max(1, setup.accumulate) if loading.workers else 0.0
    return DataWait(loading, max(0.0, loading.batch_s - hidden_s), idle_w)


TRAINING, EVALUATION, WAITING = "training", "evaluation", "waiting for data"
"""Names of the parts of a run."""


@dataclass(frozen=True)
class RunSchedule(Record):
    """How often each part of a run takes place."""

    steps: int = 1
    evaluations: int = 0
    evaluation_batches: int = 0  # of each evaluation
    runs: int = 1  # equal ones: a sweep


@dataclass(frozen=True)
class RunPart(Record):
    """A part of one run."""

    name: str
    count: int  # steps, evaluated batches, or loaded batches
    energy_j: float
    interval_j: tuple[float, float]
    duration_s: float


@dataclass(frozen=True)
class RunCost(Record):
    """What a run, or a sweep of equal runs, costs."""

    energy_j: float
    interval_j: tuple[float, float]
    level: float
    duration_s: float
    schedule: RunSchedule
    parts: tuple[RunPart, ...]  # the parts of one run
    not_included: str  # what the total leaves out, in a sentence
    provenance: str  # the weakest provenance that the energies rest on
    wait: DataWait | None = None  # how long the device waits for data; None if no loader was timed


def add_up_run(
    step: Estimate,
    setup: Setup,
    schedule: RunSchedule,
    evaluation: Estimate | None = None,
    wait: DataWait | None = None,
) -> RunCost:
    """Return what a run costs, given a step of all GPUs and the evaluation of a batch on one."""
    gpus = step.gpus
    parts = [_multiply(TRAINING, step, schedule.steps)]
    if evaluation is not None and schedule.evaluations:
        batches = schedule.evaluations * schedule.evaluation_batches
        parts.append(_multiply(EVALUATION, evaluation, batches, gpus))
    if wait is not None:
        batches = schedule.steps * max(1, setup.accumulate)
        wait_s = batches * wait.wait_s
        wait_j = gpus * wait_s * (wait.idle_w or 0.0)
        parts.append(RunPart(WAITING, batches, wait_j, (wait_j, wait_j), wait_s))
    runs = schedule.runs
    low_j, high_j = (runs * sum(part.interval_j[end] for part in parts) for end in (0, 1))
    return RunCost(
        runs * sum(part.energy_j for part in parts),
        (low_j, high_j),
        step.level,
        runs * sum(part.duration_s for part in parts),
        schedule,
        tuple(parts),
        _explain_not_included(setup, schedule, wait),
        step.provenance,
        wait,
    )


def average_step(step: Estimate, cost: RunCost) -> Estimate:
    """Return a step with its share of everything else in the run, to forecast batteries with."""
    count = cost.schedule.steps * cost.schedule.runs
    low_j, high_j = (end_j / count for end_j in cost.interval_j)
    factor = cost.duration_s / count / step.duration_s if step.duration_s else 1.0
    ends_s = step.duration_interval_s
    return replace(
        step,
        energy_j=cost.energy_j / count,
        interval_j=(low_j, high_j),
        duration_s=cost.duration_s / count,
        duration_interval_s=ends_s and (ends_s[0] * factor, ends_s[1] * factor),
    )


def _multiply(name: str, one: Estimate, count: int, gpus: int = 1) -> RunPart:
    """Return a part that takes place a number of times, on GPUs that take as much as one each."""
    low_j, high_j = (gpus * count * end_j for end_j in one.interval_j)
    energy_j = gpus * count * one.energy_j
    return RunPart(name, count, energy_j, (low_j, high_j), count * one.duration_s)


def _explain_not_included(setup: Setup, schedule: RunSchedule, wait: DataWait | None) -> str:
    missing = []
    if wait is None:
        missing.append("loading data")
    elif wait.wait_s and wait.idle_w is None:
        missing.append("energy while the device waits for data (its idle power is not known)")
    if wait is not None:
        # Even where the meter covers the processor: no step of a profile loads data.
        missing.append("energy of the processor that loads data")
    missing += [] if schedule.evaluations else ["evaluation"]
    missing += ["compiling"] if setup.compiled else []
    missing += ["checkpoint files", "start-up"]
    return f"Not included: {', '.join(missing[:-1])} and {missing[-1]}."


def list_totals(
    count: int,
    energy_j: float,
    interval_j: tuple[float, float],
    duration_s: float,
    grid: str | None = None,
    price: str | None = None,
) -> Json:
    """Return what so many steps or samples take as JSON values, given what one takes.

    ``grid`` is a text like ``de`` or ``400``, ``price`` one like ``0.30EUR``.
    """
    total_j = energy_j * count
    data: Json = {
        "total_energy_j": total_j,
        "total_interval_j": [end_j * count for end_j in interval_j],
        "total_duration_s": duration_s * count,
        "kwh": joules_to_kwh(total_j),
    }
    if grid:
        data["co2e_g"] = co2e_g(total_j, parse_grid(grid))
    if price:
        parsed = parse_price(price)
        data["cost"] = price_energy(total_j, parsed.amount_per_kwh)
        data["currency"] = parsed.currency
    return data
