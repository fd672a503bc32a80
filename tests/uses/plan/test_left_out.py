"""Jobs that cannot run come with a reason and what is missing."""

import pytest

from joulecast.uses.plan import Battery, PlanDevice, Problem, Task, TaskCost, solve
from joulecast.uses.plan.left_out import explain_left_out


def explain(device, task, others=()):
    problem = Problem((device,), (task, *others))
    found = solve(problem, 10.0, workers=1)
    assert task.name in found.left_out
    (reason,) = explain_left_out(problem, found.schedule, task.name).reasons
    return reason


def test_reasons_say_how_much_is_missing():
    cost = TaskCost(10.0, 50.0, 8.0)
    late = explain(PlanDevice("m"), Task("a", {"m": cost}, 5.0, 12.0))
    assert (late.kind, late.missing, late.unit, late.is_alone) == ("deadline", 3.0, "s", True)
    large = explain(PlanDevice("m", memory_bytes=5.0), Task("a", {"m": cost}))
    assert (large.kind, large.missing, large.unit) == ("memory", 3.0, "bytes")
    empty = explain(PlanDevice("m", battery=Battery(100.0, 60.0, 20.0)), Task("a", {"m": cost}))
    assert (empty.kind, empty.missing, empty.unit) == ("battery", pytest.approx(10.0), "J")


def test_tasks_that_fit_alone_are_distinguished():
    device = PlanDevice("m", battery=Battery(100.0, 100.0, 20.0))
    first = Task("a", {"m": TaskCost(10.0, 50.0)}, priority=2)
    beside = explain(device, Task("b", {"m": TaskCost(10.0, 40.0)}), (first,))
    assert (beside.kind, beside.is_alone) == ("battery", False)
    assert beside.missing == pytest.approx(10.0)
    busy = explain(
        PlanDevice("m"),
        Task("b", {"m": TaskCost(10.0, 1.0)}, 0.0, 15.0),
        (Task("a", {"m": TaskCost(10.0, 1.0)}, 0.0, 10.0, priority=2),),
    )
    assert (busy.kind, busy.missing, busy.is_alone) == ("deadline", pytest.approx(5.0), False)
