"""Improvement never makes a schedule worse."""

import itertools

from joulecast.uses.plan import (
    Battery,
    ChargingWindow,
    PlanDevice,
    Problem,
    Task,
    TaskCost,
    replay,
)
from joulecast.uses.plan.improvement import improve
from joulecast.uses.plan.insertion import insert_rest
from joulecast.uses.plan.solve import rank


def test_improvement_is_valid_and_never_worse():
    tasks = tuple(
        Task(
            f"t{at}",
            {m: TaskCost(3.0 + at % 5, 5.0 + (7 * at * k) % 13) for k, m in enumerate("mn", 1)},
        )
        for at in range(12)
    )
    battery = Battery(100.0, 80.0, 10.0, (ChargingWindow(10.0, 30.0, 3.0),))
    problem = Problem((PlanDevice("m", 1.0), PlanDevice("n", 0.5, battery=battery)), tasks)
    first = insert_rest(problem, ())
    ticking = itertools.count(0.0, 1.0)
    better = improve(problem, first, 60.0, lambda: next(ticking))
    assert rank(problem, better) <= rank(problem, first)
    assert not replay(problem, better).violations
