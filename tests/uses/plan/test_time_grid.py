"""Rounding to time steps is safe."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.uses.plan import replay
from joulecast.uses.plan.time_grid import choose_step, round_problem, round_to_grid
from plan_examples import problems


@given(problems(whole=False))
@settings(max_examples=40, deadline=None)
def test_horizon_holds_all_tasks_one_after_another(problem):
    rounded, grid = round_to_grid(problem)
    if all(task.deadline_s == math.inf for task in problem.tasks):
        longest_s = sum(max(c.duration_s for c in t.costs.values()) for t in rounded.tasks)
        least_s = max(t.release_s for t in rounded.tasks) + longest_s - grid.step_s / 2
        assert grid.horizon * grid.step_s >= least_s


@given(problems(whole=False), st.data())
@settings(max_examples=60, deadline=None)
def test_what_holds_on_the_grid_holds_in_seconds(problem, data):
    rounded = round_problem(problem, 0.25)
    schedule = []
    for task in rounded.tasks:
        device = data.draw(st.sampled_from(rounded.devices)).name
        schedule.append(rounded.assign(task.name, device, 0.25 * data.draw(st.integers(0, 24))))
    exact = [problem.assign(one.task, one.device, one.start_s) for one in schedule]
    on_grid, replayed = replay(rounded, schedule, 0.0), replay(problem, exact)
    assert {(one.kind, one.device) for one in replayed.violations} <= {
        (one.kind, one.device) for one in on_grid.violations
    }
    assert replayed.energy_j <= on_grid.energy_j + 1e-9


@given(problems())
@settings(max_examples=25, deadline=None)
def test_times_are_rounded_to_the_safe_side(problem):
    tasks = []
    for task in problem.tasks:
        costs = {m: replace(c, duration_s=0.7 * c.duration_s) for m, c in task.costs.items()}
        tasks.append(replace(task, costs=costs))
    exact = replace(problem, tasks=tuple(tasks))
    for task in round_problem(exact, 0.5).tasks:
        old = exact.task[task.name]
        assert task.release_s >= old.release_s and task.deadline_s <= old.deadline_s
        for name, cost in task.costs.items():
            assert cost.duration_s >= old.costs[name].duration_s
            assert cost.extra_j == old.costs[name].extra_j
            assert (cost.duration_s / 0.5).is_integer()


@pytest.mark.parametrize("horizon_s", [0.001, 1.0, 3600.0, 86400.0 * 365])
def test_every_horizon_has_a_time_step(horizon_s):
    step_s = choose_step(horizon_s)
    assert step_s == 0.001 or horizon_s / step_s > 10_000
