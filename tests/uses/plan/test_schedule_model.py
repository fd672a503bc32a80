"""The CP-SAT model optimises priority, energy and start times."""

import pytest

from joulecast.uses.plan import PlanDevice, Problem, Task, TaskCost
from joulecast.uses.plan.schedule_model import ScheduleModel
from joulecast.uses.plan.time_grid import TimeGrid


def make_problem():
    costs = {"m": TaskCost(10.0, 5.0), "n": TaskCost(10.0, 50.0)}
    tasks = tuple(Task(name, costs, 0.0, 30.0, priority) for name, priority in (("a", 1), ("b", 2)))
    return Problem((PlanDevice("m", awake_w=1.0), PlanDevice("n", awake_w=1.0)), tasks)


def test_least_energy_uses_the_frugal_device():
    model = ScheduleModel(make_problem(), TimeGrid(1.0, 30))
    model.require_priority(("a", "b"))
    found = model.solve("energy", 5.0, (), 1)
    assert found.is_optimal and {one.device for one in found.schedule} == {"m"}
    assert found.bound == pytest.approx(2 * 5.0 + 20.0)


def test_starts_are_as_early_as_possible():
    model = ScheduleModel(make_problem(), TimeGrid(1.0, 30))
    model.require_priority(("a", "b"))
    found = model.solve("starts", 5.0, (), 1)
    assert [one.start_s for one in found.schedule] == [0.0, 0.0]


def test_too_much_priority_is_infeasible():
    model = ScheduleModel(make_problem(), TimeGrid(1.0, 5))
    model.require_priority(("a",))
    assert model.solve("energy", 5.0, (), 1).is_infeasible
