"""The model forbids violations of batteries in all schedules, once each."""

from joulecast.uses.plan import Battery, ChargingWindow, PlanDevice, Problem, Task, TaskCost, replay
from joulecast.uses.plan.charge_model import ChargeModel
from joulecast.uses.plan.replay import STRICT
from joulecast.uses.plan.time_grid import TimeGrid

# Charging ends long before the tasks may start, so the full battery gains nothing from it.
FULL = Battery(50.0, 50.0, 0.0, (ChargingWindow(0.0, 100.0, 10.0),))


def make_model():
    tasks = tuple(Task(name, {"m": TaskCost(10.0, 40.0)}, 100.0, 120.0) for name in "ab")
    problem = Problem((PlanDevice("m", battery=FULL),), tasks)
    return problem, ChargeModel(problem, TimeGrid(1.0, 120))


def test_forbidden_violation_does_not_return():
    problem, model = make_model()
    first = model.solve("priority", 5.0, (), 1)
    assert first.schedule is not None and len(first.schedule) == 2
    violations = replay(problem, first.schedule, STRICT).violations
    assert model.forbid(violations, first.schedule)
    second = model.solve("priority", 5.0, (), 1)
    assert second.is_optimal and second.schedule is not None and len(second.schedule) == 1
    assert not replay(problem, second.schedule).violations


def test_known_violation_is_not_forbidden_twice():
    problem, model = make_model()
    schedule = model.solve("priority", 5.0, (), 1).schedule
    violations = replay(problem, schedule, STRICT).violations
    assert model.forbid(violations, schedule)
    assert not model.forbid(violations, schedule)
