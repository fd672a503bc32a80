"""Parts of a run add up; loaders are timed, and batches hide behind steps if workers load them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from joulecast.features.estimate_report import list_run_lines
from joulecast.features.run import (
    EVALUATION,
    TRAINING,
    WAITING,
    DataWait,
    LoadingTime,
    RunCost,
    RunSchedule,
    add_up_run,
    average_step,
    find_wait,
    time_loader,
)
from joulecast.records import DataParallel, Estimate, Setup
from joulecast.system.errors import InputError

STEP = Estimate(
    2.0, (1.5, 2.6), 0.95, 0.01, 1000, (), 0.0, "simulated", "gpu", "board", "additive",
    duration_interval_s=(0.008, 0.012),
)  # fmt: skip
EVALUATED = replace(STEP, energy_j=0.5, interval_j=(0.4, 0.7), duration_s=0.003)
SETUP = Setup(batch=8)
SCHEDULE = RunSchedule(100, evaluations=5, evaluation_batches=4)
WAIT = DataWait(LoadingTime(0.012, 50, workers=2), 0.002, idle_w=30.0)


def test_parts_of_a_run_add_up() -> None:
    cost = add_up_run(STEP, SETUP, SCHEDULE, EVALUATED, WAIT)
    parts = [(part.name, part.count) for part in cost.parts]
    assert parts == [(TRAINING, 100), (EVALUATION, 20), (WAITING, 100)]
    waiting_j = 100 * 0.002 * 30.0
    assert cost.energy_j == pytest.approx(200.0 + 10.0 + waiting_j)
    # Errors of the parts are common, so the ends add up.
    assert cost.interval_j == pytest.approx((150.0 + 8.0 + waiting_j, 260.0 + 14.0 + waiting_j))
    assert cost.duration_s == pytest.approx(1.0 + 0.06 + 0.2)
    assert cost.provenance == "simulated" and cost.level == 0.95
    # A step of several GPUs has their energy; evaluations and waiting are estimated for one.
    part = DataParallel(4, 32, 1000, 1, 300e9, 0.75, 1e-3, 1e-3, 1e-3, 0.1, 100.0, "simulated")
    four = add_up_run(replace(STEP, data_parallel=part), SETUP, SCHEDULE, EVALUATED, WAIT)
    pairs = list(zip(cost.parts, four.parts, strict=True))
    assert [b.energy_j / a.energy_j for a, b in pairs] == pytest.approx([1.0, 4.0, 4.0])
    assert [b.interval_j[1] / a.interval_j[1] for a, b in pairs] == pytest.approx([1.0, 4.0, 4.0])
    assert four.duration_s == pytest.approx(cost.duration_s)


def test_interval_of_a_sweep_does_not_shrink() -> None:
    one, many = (add_up_run(STEP, SETUP, RunSchedule(10, runs=runs)) for runs in (1, 200))
    assert many.energy_j == pytest.approx(200 * one.energy_j)
    assert many.interval_j == pytest.approx([200 * end_j for end_j in one.interval_j])
    assert many.parts == one.parts


def test_every_batch_of_a_step_is_waited_for() -> None:
    wait = DataWait(LoadingTime(0.1, 50), 0.1)
    waiting = add_up_run(STEP, replace(SETUP, accumulate=4), RunSchedule(10), wait=wait).parts[-1]
    assert (waiting.count, waiting.energy_j) == (40, 0.0)
    assert waiting.duration_s == pytest.approx(4.0)


def test_what_is_missing_is_said_in_one_sentence() -> None:
    def explain(setup: Setup = SETUP, *rest: Any) -> str:
        schedule = RunSchedule(10, 1, 1) if rest else RunSchedule(10)
        return add_up_run(STEP, setup, schedule, *rest).not_included

    assert explain() == "Not included: loading data, evaluation, checkpoint files and start-up."
    assert "compiling" in explain(replace(SETUP, compiled=True))
    wait = DataWait(LoadingTime(0.1, 50), 0.1)
    loaded = explain(SETUP, EVALUATED, wait)
    assert "idle power is not known" in loaded and "processor that loads data" in loaded
    assert "evaluation" not in loaded and "loading data," not in loaded
    # No data was loaded while the meter measured, whatever it covers.
    assert explain(SETUP, EVALUATED, replace(wait, idle_w=5.0)) == (
        "Not included: energy of the processor that loads data, checkpoint files and start-up."
    )


def test_average_step_has_its_share_of_everything() -> None:
    cost: RunCost = add_up_run(STEP, SETUP, replace(SCHEDULE, runs=3), EVALUATED)
    average = average_step(STEP, cost)
    assert 300 * average.energy_j == pytest.approx(cost.energy_j)
    assert 300 * average.duration_s == pytest.approx(cost.duration_s)
    assert average.interval_j[0] < average.energy_j < average.interval_j[1]
    assert average.duration_interval_s is not None
    assert average.duration_interval_s[0] == pytest.approx(0.008 * average.duration_s / 0.01)


def test_first_batch_is_not_counted_and_timing_ends() -> None:
    def count(loader: Any, *times_s: float) -> LoadingTime:
        clock = itertools.chain(times_s, itertools.repeat(times_s[-1]))
        return time_loader(loader, 4, clock=lambda: next(clock))

    # The first one starts the workers.
    assert count([1, 2, 3, 4], 9.0, 9.5, 10.0, 10.5) == LoadingTime(0.5, 3, 0)
    assert count(itertools.count(), 0.0, 6.0).batches == 1
    assert count(itertools.count(), 0.0).batches == 200
    found = time_loader(DataLoader(TensorDataset(torch.zeros(40, 3)), batch_size=4), 4)
    assert found.batches == 9 and found.workers == 0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: RunSchedule(steps=0), "at least 1"),
        (lambda: RunSchedule(runs=0), "at least 1"),
        (lambda: time_loader([1], 4), "gave 1 batches: give one with at least 2"),
        (lambda: time_loader([], 4), "gave 0 batches"),
        (
            lambda: time_loader(DataLoader(TensorDataset(torch.zeros(40, 3)), batch_size=8), 4),
            "batches of 8, but the estimate is for 4: give batch=8",
        ),
    ],
)
def test_empty_runs_and_other_loaders_are_refused(ask: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask()


@pytest.mark.parametrize(
    ("batch_s", "workers", "accumulate", "wait_s"),
    [(0.03, 0, 1, 0.03), (0.03, 2, 1, 0.01), (0.03, 2, 4, 0.025), (0.03, 0, 4, 0.03),
     (0.01, 1, 1, 0.0)],
)  # fmt: skip
def test_device_waits_for_what_no_worker_hides(
    batch_s: float, workers: int, accumulate: int, wait_s: float
) -> None:
    setup = Setup(batch=4, accumulate=accumulate)
    found = find_wait(LoadingTime(batch_s, 9, workers), 0.02, setup, idle_w=7.0)
    assert found.wait_s == pytest.approx(wait_s) and found.idle_w == 7.0


def test_hidden_and_unknown_waits_are_described() -> None:
    loading = LoadingTime(0.002, 10, workers=4)
    for wait_s, said in (
        (0.0, "Loading data adds nothing: a batch takes 2.00 ms to load with 4 workers"),
        (0.001, "Loading data adds 10.0 ms: a batch"),
    ):
        cost = add_up_run(STEP, SETUP, RunSchedule(10), wait=DataWait(loading, wait_s))
        assert said in list_run_lines(cost, SETUP)[1]
