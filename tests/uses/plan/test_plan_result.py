"""Expected energies do not depend on the confidence, and schedules are followed in their order."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings

from joulecast.uses.plan import (
    Assignment,
    DeviceSpec,
    Job,
    JobCost,
    PlanDevice,
    PlanRequest,
    Problem,
    RunForecast,
    Task,
    TaskCost,
    plan_jobs,
    replay,
    solve,
)
from joulecast.uses.plan.plan_result import follow_schedule
from plan_examples import problems

NOW = datetime(2030, 5, 1, tzinfo=UTC)


def plan_two_jobs(confidence, idle_w=10.0, max_parallel=2, **more):
    """Plan two jobs of 300 s at 15 W with an uncertainty of 30 %."""
    spec = DeviceSpec(
        "m", power_w=15.0, flops_per_s=1.0, idle_w=idle_w, max_parallel=max_parallel, **more
    )
    request = PlanRequest((Job("a", "net", 1), Job("b", "net", 1)), (spec,))
    run = RunForecast(15.0 * 300, 300.0, 0.3, 0.3, spec.rest_w)
    costs = {job.name: {"m": JobCost(run, 1.0, "modelled", "")} for job in request.jobs}
    return plan_jobs(request, costs, {}, NOW, confidence, 10.0)


@pytest.mark.parametrize("rest_w", [0.0, 4.0])
@pytest.mark.parametrize("max_parallel", [1, 2])
@pytest.mark.parametrize("idle_w", [0.0, 10.0, 20.0])
def test_expected_energy_is_the_same_at_every_confidence(idle_w, max_parallel, rest_w):
    plans = [plan_two_jobs(c, idle_w, max_parallel, rest_w=rest_w) for c in (0.5, 0.9, 0.99)]
    even = plans[0]
    alone_j = 300 * (max(15.0, idle_w) + rest_w)
    shared_j = 300 * (idle_w + rest_w) if max_parallel == 2 else 0.0
    assert even.energy_j == pytest.approx(2 * alone_j - shared_j, rel=1e-6)
    assert even.solution.energy_j == pytest.approx(even.energy_j, rel=1e-6)
    low_j, high_j = even.interval_j
    # Energy and duration of all jobs are off by the same 30 %, so everything scales.
    assert math.log(high_j / even.energy_j) == pytest.approx(1.96 * 0.3, rel=1e-3)
    assert math.log(even.energy_j / low_j) == pytest.approx(1.96 * 0.3, rel=1e-3)
    for plan in plans:
        assert plan.energy_j == pytest.approx(even.energy_j, rel=1e-6)
        assert plan.interval_j == pytest.approx(even.interval_j, rel=1e-6)
        assert plan.job_energy_j(plan.solution.schedule[0])[0] == pytest.approx(alone_j)
    planned = [plan.solution.energy_j for plan in plans]
    assert planned == sorted(planned) and planned[0] < planned[1]


def test_upper_bounds_hold_for_parallel_jobs():
    """Much energy in a short time: then sharing idle power for longer gains nothing."""
    run = RunForecast(4500.0, 300.0, 0.3, 0.3)
    planned_j = plan_two_jobs(0.9).solution.energy_j
    assert planned_j >= 2 * run.energy_quantile(0.9) - 10.0 * run.duration_quantile(0.1)
    alone_j = plan_two_jobs(0.9, max_parallel=1).solution.energy_j
    assert alone_j == pytest.approx(2 * run.energy_quantile(0.9), rel=1e-6)


@given(problems(whole=False))
@settings(max_examples=25, deadline=None)
def test_schedule_with_planned_durations_is_followed_as_planned(problem):
    found = solve(problem, 0.5, workers=1)
    followed = follow_schedule(problem, found.schedule, 1.5 * found.time_step_s)
    assert {one.task for one in followed} == {one.task for one in found.schedule}
    replayed = replay(problem, followed)
    assert replayed.energy_j == pytest.approx(found.energy_j, rel=1e-3, abs=0.05)
    kinds = {one.kind for one in replayed.violations}
    assert not kinds & {"release", "parallel", "memory"}


@pytest.mark.parametrize(
    ("duration_s", "starts"), [(5.0, [0, 5, 50]), (30.0, [0, 30, 60]), (10.0, [0, 10, 50])]
)
def test_task_that_follows_another_waits_only_for_it(duration_s, starts):
    planned = (
        Assignment("a", "m", 0.0, 10.0),
        Assignment("b", "m", 10.0, 20.0),
        Assignment("c", "m", 50.0, 60.0),
    )
    costs = {"m": replace(TaskCost(10.0, 1.0), duration_s=duration_s)}
    problem = Problem((PlanDevice("m"),), tuple(Task(name, costs) for name in "abc"))
    assert [one.start_s for one in follow_schedule(problem, planned, 0.01)] == starts
