"""Parts of a run add up, and intervals of sweeps scale with the number of runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.features.run import (
    EVALUATION,
    TRAINING,
    WAITING,
    DataWait,
    LoadingTime,
    RunSchedule,
    add_up_run,
    average_step,
)
from joulecast.records import DataParallel, Estimate, Setup
from joulecast.system.errors import InputError

STEP = Estimate(
    energy_j=2.0,
    interval_j=(1.5, 2.6),
    level=0.95,
    duration_s=0.01,
    peak_memory_bytes=1000,
    layers=(),
    unseen_share=0.0,
    provenance="simulated",
    covers="gpu",
    device="board",
    estimator="additive",
    duration_interval_s=(0.008, 0.012),
)
EVALUATED = replace(STEP, energy_j=0.5, interval_j=(0.4, 0.7), duration_s=0.003)
SETUP = Setup(batch=8)


def test_parts_of_a_run_add_up() -> None:
    schedule = RunSchedule(100, evaluations=5, evaluation_batches=4)
    wait = DataWait(LoadingTime(0.012, 50, workers=2), 0.002, idle_w=30.0)
    cost = add_up_run(STEP, SETUP, schedule, EVALUATED, wait)
    assert [(part.name, part.count) for part in cost.parts] == [
        (TRAINING, 100),
        (EVALUATION, 20),
        (WAITING, 100),
    ]
    waiting_j = 100 * 0.002 * 30.0
    assert cost.energy_j == pytest.approx(200.0 + 10.0 + waiting_j)
    # Errors of the parts are common, so the ends add up.
    assert cost.interval_j == pytest.approx((150.0 + 8.0 + waiting_j, 260.0 + 14.0 + waiting_j))
    assert cost.duration_s == pytest.approx(1.0 + 0.06 + 0.2)
    assert cost.provenance == "simulated" and cost.level == 0.95


def test_interval_of_a_sweep_does_not_shrink() -> None:
    one, many = (add_up_run(STEP, SETUP, RunSchedule(10, runs=runs)) for runs in (1, 200))
    assert many.energy_j == pytest.approx(200 * one.energy_j)
    assert many.interval_j == pytest.approx([200 * end_j for end_j in one.interval_j])
    assert many.parts == one.parts


def test_every_batch_of_a_step_is_waited_for() -> None:
    wait = DataWait(LoadingTime(0.1, 50), 0.1)
    cost = add_up_run(STEP, replace(SETUP, accumulate=4), RunSchedule(10), wait=wait)
    assert cost.parts[-1].count == 40
    assert cost.parts[-1].duration_s == pytest.approx(4.0)
    assert cost.parts[-1].energy_j == 0.0


def test_what_is_missing_is_said_in_one_sentence() -> None:
    plain = add_up_run(STEP, SETUP, RunSchedule(10)).not_included
    assert plain == "Not included: loading data, evaluation, checkpoint files and start-up."
    compiled = add_up_run(STEP, replace(SETUP, compiled=True), RunSchedule(10)).not_included
    assert "compiling" in compiled
    wait = DataWait(LoadingTime(0.1, 50), 0.1)
    loaded = add_up_run(STEP, SETUP, RunSchedule(10, 1, 1), EVALUATED, wait).not_included
    assert "idle power is not known" in loaded and "processor that loads data" in loaded
    assert "evaluation" not in loaded and "loading data," not in loaded
    known = replace(wait, idle_w=5.0)
    # The meter covers the processor, but no data was loaded while it measured.
    whole = replace(STEP, covers="cpu + gpu")
    for step in (STEP, whole):
        assert add_up_run(step, SETUP, RunSchedule(10, 1, 1), EVALUATED, known).not_included == (
            "Not included: energy of the processor that loads data, checkpoint files and start-up."
        )


def test_average_step_has_its_share_of_everything() -> None:
    schedule = RunSchedule(100, evaluations=5, evaluation_batches=4, runs=3)
    cost = add_up_run(STEP, SETUP, schedule, EVALUATED)
    average = average_step(STEP, cost)
    assert 300 * average.energy_j == pytest.approx(cost.energy_j)
    assert 300 * average.duration_s == pytest.approx(cost.duration_s)
    assert average.interval_j[0] < average.energy_j < average.interval_j[1]
    assert average.duration_interval_s is not None
    assert average.duration_interval_s[0] == pytest.approx(0.008 * average.duration_s / 0.01)


def test_empty_runs_are_refused() -> None:
    for schedule in ({"steps": 0}, {"runs": 0}):
        with pytest.raises(InputError, match="at least 1"):
            RunSchedule(**schedule)


def test_all_gpus_evaluate_and_wait() -> None:
    """A step of several GPUs has their energy; evaluations and waiting are estimated for one."""
    part = DataParallel(4, 32, 1000, 1, 300e9, 0.75, 1e-3, 1e-3, 1e-3, 0.1, 100.0, "simulated")
    schedule = RunSchedule(100, evaluations=5, evaluation_batches=4)
    wait = DataWait(LoadingTime(0.012, 50, workers=2), 0.002, idle_w=30.0)
    one = add_up_run(STEP, SETUP, schedule, EVALUATED, wait)
    four = add_up_run(replace(STEP, data_parallel=part), SETUP, schedule, EVALUATED, wait)
    energies = [
        later.energy_j / first.energy_j for first, later in zip(one.parts, four.parts, strict=True)
    ]
    assert energies == pytest.approx([1.0, 4.0, 4.0])
    assert four.parts[1].interval_j == pytest.approx(
        [4 * end_j for end_j in one.parts[1].interval_j]
    )
    assert four.duration_s == pytest.approx(one.duration_s)
