"""Add up what a whole run costs: training, evaluation, waiting for data, and a sweep of runs.

Errors of the parts, and of the runs of a sweep, are common to all of them: they have the same
network, device and profile. Intervals are therefore added up end by end and do not shrink with the
number of runs.

A loader with worker processes loads the next batches while a step runs, so the device waits only
where a batch takes longer to load than to train. Without workers the training process itself loads
each batch, and the device waits all the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from joulecast.records import Estimate, Json, Setup
from joulecast.records.codec import Record
from joulecast.system.errors import InputError, arg
from joulecast.system.units import (
    Price,
    co2e_g,
    joules_to_kwh,
    parse_grid,
    parse_price,
    price_energy,
)

_MOST_BATCHES = 200
_MOST_SECONDS = 5.0


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

    def __post_init__(self) -> None:
        if self.steps < 1 or self.runs < 1:
            raise InputError(f"{self.steps} steps in {self.runs} runs: give at least 1 of each")


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


@dataclass(frozen=True)
class Bill:
    """A number of steps or samples, and the units that their energy is wanted in."""

    count: int
    grams_per_kwh: float | None = None  # CO2e of the grid
    price: Price | None = None

    def compute_totals(
        self, energy_j: float, interval_j: tuple[float, float], duration_s: float
    ) -> Json:
        """Return the totals as JSON values, given energy and duration of one step or sample."""
        total_j = energy_j * self.count
        data: Json = {
            "total_energy_j": total_j,
            "total_interval_j": [end_j * self.count for end_j in interval_j],
            "total_duration_s": duration_s * self.count,
            "kwh": joules_to_kwh(total_j),
        }
        if self.grams_per_kwh is not None:
            data["co2e_g"] = co2e_g(total_j, self.grams_per_kwh)
        if self.price is not None:
            data["cost"] = price_energy(total_j, self.price.amount_per_kwh)
            data["currency"] = self.price.currency
        return data


def make_bill(count: int, grid: str | None = None, price: str | None = None) -> Bill:
    """Return a bill from the text of options: ``de`` or ``400``, and ``0.30EUR``."""
    return Bill(count, parse_grid(grid) if grid else None, parse_price(price) if price else None)
