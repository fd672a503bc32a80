"""Quick insertion agrees with the replay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.uses.plan import PlanDevice, Problem, Task, TaskCost, replay
from joulecast.uses.plan.insertion import PartialSchedule
from joulecast.uses.plan.replay import STRICT
from plan_examples import problems


@given(problems(whole=False), st.data())
@settings(max_examples=150, deadline=None)
def test_partial_schedule_agrees_with_the_replay(problem, data):
    partial, schedule = PartialSchedule(problem), []
    for task in problem.tasks:
        device = data.draw(st.sampled_from(problem.devices)).name
        start_s = data.draw(st.sampled_from([*range(9), *(one.end_s for one in schedule)]))
        new = problem.assign(task.name, device, float(start_s))
        is_valid = not replay(problem, [*schedule, new], STRICT).violations
        assert partial.fits(new) == is_valid
        if is_valid:
            partial.add(new)
            schedule.append(new)
        assert partial.energy_j == pytest.approx(replay(problem, schedule).energy_j)
    assert set(partial.schedule) == set(schedule)


@given(problems(whole=False))
@settings(max_examples=100, deadline=None)
def test_inserted_tasks_are_valid(problem):
    partial = PartialSchedule(problem)
    for task in problem.tasks:
        before_j, other = partial.energy_j, partial.copy()
        if not partial.insert(task):
            continue
        assert not replay(problem, partial.schedule, STRICT).violations
        assert partial.energy_j >= before_j
        assert other.energy_j == before_j and len(other.schedule) < len(partial.schedule)


@pytest.mark.parametrize("max_parallel", [1, 2])
def test_tasks_start_no_earlier_than_told(max_parallel):
    task = Task("a", {"m": TaskCost(2.0, 1.0)}, 1.0)
    problem = Problem((PlanDevice("m", max_parallel=max_parallel),), (task,))
    for not_before_s, start_s in (({"m": 5.0}, 5.0), ({}, 1.0)):
        partial = PartialSchedule(problem)
        assert partial.insert(task, not_before_s)
        assert partial.schedule == (("a", "m", start_s, start_s + 2.0),)
