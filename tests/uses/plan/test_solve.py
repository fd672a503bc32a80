"""Schedules violate nothing, and no schedule is better than a proven one."""

import itertools
import math

import pytest
from hypothesis import given, settings

from joulecast.uses.plan import (
    Battery,
    ChargingWindow,
    PlanDevice,
    Problem,
    Task,
    TaskCost,
    replay,
    solve,
)
from joulecast.uses.plan.solve import GOOD_GAP_SHARE, rank
from plan_examples import list_schedules, problems, simulate


@given(problems() | problems(whole=False))
@settings(max_examples=60, deadline=None)
def test_schedules_violate_nothing(problem):
    found = solve(problem, 0.5, workers=1)
    assert not replay(problem, found.schedule).violations
    least, energy = simulate(problem, found.schedule, parts=200)
    assert least > -0.5
    assert found.energy_j == pytest.approx(energy, abs=0.5)
    assert {one.task for one in found.schedule} | set(found.left_out) == set(problem.task)


@given(problems(max_tasks=3, max_devices=2, max_s=8))
@settings(max_examples=25, deadline=None)
def test_no_schedule_is_better_than_the_solvers(problem):
    found = solve(problem, 20.0, workers=1)
    valid = [s for s in list_schedules(problem) if not replay(problem, s).violations]
    best = min(rank(problem, schedule) for schedule in valid)
    assert found.is_optimal and found.runs_most
    assert -len(found.schedule) == best[0]
    # Time steps are finer than the seconds that were tried, so the solver may even be better.
    assert found.energy_j <= best[1] * (1 + 1e-6) + 1e-6
    assert found.lower_bound_j <= found.energy_j * (1 + 1e-9)


@given(problems(max_tasks=3, whole=False))
@settings(max_examples=40, deadline=None)
def test_small_problems_are_optimal_or_nearly_so(problem):
    found = solve(problem, 20.0, workers=1)
    assert not found.timed_out
    assert found.is_optimal or found.gap_share <= GOOD_GAP_SHARE
    assert found.runs_most


def test_two_tasks_without_deadline_run_back_to_back():
    cost = TaskCost(499.593, 1.0)
    tasks = (Task("a", {"m": cost}), Task("b", {"m": cost}))
    found = solve(Problem((PlanDevice("m", awake_w=30.0),), tasks), 10.0, workers=1)
    assert found.is_optimal and found.gap_share == 0
    # Only the wait for the next time step is between them.
    assert found.energy_j == pytest.approx(2 * (499.593 * 30 + 1), rel=1e-5)


@given(problems(max_tasks=3, whole=False))
@settings(max_examples=25, deadline=None)
def test_no_task_can_start_a_second_earlier_at_the_same_energy(problem):
    found = solve(problem, 20.0, workers=1)
    for one in found.schedule:
        others = [other for other in found.schedule if other != one]
        sooner = problem.assign(one.task, one.device, one.start_s - 1.0)
        replayed = replay(problem, [*others, sooner])
        costs_more = replayed.energy_j > found.energy_j * (1 + 1e-9)
        assert replayed.violations or costs_more or sooner.start_s < 0


def test_tasks_that_gain_nothing_by_waiting_do_not_wait():
    tasks = (
        Task("long", {"m": TaskCost(700.0, 9e4)}, 1800.0, 36000.0),
        Task("short", {"m": TaskCost(30.0, 9e3)}, 0.0, 28800.0),
    )
    found = solve(Problem((PlanDevice("m", awake_w=220.0),), tasks), 10.0, workers=1)
    starts = {one.task: one.start_s for one in found.schedule}
    assert starts["long"] == pytest.approx(1800.0, abs=1)
    assert starts["short"] == pytest.approx(1770.0, abs=1)


def test_two_tasks_that_fill_a_memory_run_in_parallel():
    half = TaskCost(10.0, 1.0, 2.5 * 2**20)
    tasks = (Task("a", {"m": half}, 0.0, 10.0), Task("b", {"m": half}, 0.0, 10.0))
    device = PlanDevice("m", memory_bytes=5 * 2**20, max_parallel=2)
    found = solve(Problem((device,), tasks), 10.0, workers=1)
    assert not found.left_out and found.is_optimal


def test_task_that_needs_the_last_joule_runs():
    task = Task("a", {"m": TaskCost(math.pi, 30.0)})
    device = PlanDevice("m", battery=Battery(100.0, 40.0, 10.0))
    found = solve(Problem((device,), (task,)), 5.0, workers=1)
    assert not found.left_out and not found.replay.violations


def test_tasks_wait_for_a_charger():
    battery = Battery(100.0, 40.0, 10.0, (ChargingWindow(50.0, 100.0, 2.0),))
    tasks = tuple(Task(name, {"m": TaskCost(10.0, 30.0)}) for name in "abc")
    found = solve(Problem((PlanDevice("m", battery=battery),), tasks), 10.0, workers=1)
    assert not found.left_out
    starts = sorted(one.start_s for one in found.schedule)
    # The first now; the others draw 3 W against 2 W, each after 10 J were charged.
    assert starts == pytest.approx([0.0, 55.0, 70.0], abs=0.01)


def test_full_battery_gains_nothing_from_its_charger():
    battery = Battery(50.0, 50.0, 0.0, (ChargingWindow(0.0, 100.0, 10.0),))
    tasks = tuple(Task(name, {"m": TaskCost(10.0, 40.0)}, 100.0, 120.0) for name in "ab")
    found = solve(Problem((PlanDevice("m", battery=battery),), tasks), 10.0, workers=1)
    assert len(found.left_out) == 1
    assert found.runs_most


def test_tasks_are_grouped_to_save_idle_energy():
    tasks = tuple(Task(name, {"m": TaskCost(10.0, 10.0)}, 0.0, 100.0) for name in "ab")
    late = Task("c", {"m": TaskCost(10.0, 10.0)}, 50.0, 100.0)
    found = solve(Problem((PlanDevice("m", awake_w=5.0),), (*tasks, late)), 10.0, workers=1)
    assert found.replay.runs["m"].idle_j == pytest.approx(0.0, abs=1e-3)
    assert min(one.start_s for one in found.schedule) == pytest.approx(30.0, abs=0.01)


def test_tasks_of_higher_priority_run():
    tasks = tuple(
        Task(f"t{at}", {"m": TaskCost(10.0, 20.0)}, priority=priority)
        for at, priority in enumerate((1, 3, 1, 2))
    )
    device = PlanDevice("m", battery=Battery(100.0, 60.0, 20.0))
    found = solve(Problem((device,), tasks), 10.0, workers=1)
    assert {one.task for one in found.schedule} == {"t1", "t3"}
    assert found.runs_most


def test_time_limit_leaves_a_schedule_and_a_bound():
    costs = [
        {m: TaskCost(5.0 + at % 7, 10.0 + (at * k) % 11) for k, m in enumerate("mno")}
        for at in range(30)
    ]
    tasks = tuple(Task(f"t{at}", row) for at, row in enumerate(costs))
    devices = tuple(PlanDevice(name, 1.0, max_parallel=2) for name in "mno")
    ticking = itertools.count(0.0, 0.4)
    found = solve(Problem(devices, tasks), 1.0, workers=1, now=lambda: next(ticking))
    assert len(found.schedule) == 30 and not found.replay.violations
    assert 0 < found.lower_bound_j <= found.energy_j
    assert 0 <= found.gap_share < 0.5


def test_uneven_lanes_are_proven_optimal():
    """Durations that sum to 105 s cannot be split evenly over two lanes."""
    durations_s = (11.0, 13.0, 17.0, 19.0, 16.0, 14.0, 15.0)
    tasks = tuple(Task(f"t{s:g}", {"m": TaskCost(s, 1.0)}, 0.0, 120.0) for s in durations_s)
    device = PlanDevice("m", awake_w=10.0, max_parallel=2)
    found = solve(Problem((device,), tasks), 20.0, workers=2)
    assert found.is_optimal
    assert found.energy_j == pytest.approx(10 * 53.0 + 7, abs=0.1)
