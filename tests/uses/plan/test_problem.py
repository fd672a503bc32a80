"""Invalid problems are refused."""

import pytest

from joulecast.errors import InputError
from joulecast.uses.plan import (
    Battery,
    ChargingWindow,
    PlanDevice,
    Problem,
    Task,
    TaskCost,
    solve,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChargingWindow(5.0, 5.0, 1.0),
        lambda: ChargingWindow(0.0, 5.0, 0.0),
        lambda: Battery(10.0, 11.0),
        lambda: Battery(
            10.0, 5.0, 0.0, (ChargingWindow(0.0, 5.0, 1.0), ChargingWindow(4.0, 6.0, 1.0))
        ),
        lambda: PlanDevice("m", 1.0, 2.0),
        lambda: PlanDevice("m", max_parallel=0),
        lambda: TaskCost(0.0, 1.0),
        lambda: Problem((PlanDevice("m"), PlanDevice("m")), ()),
        lambda: Problem((), (Task("a", {"m": TaskCost(1.0, 1.0)}),)),
        lambda: solve(Problem((), ())),
    ],
)
def test_invalid_problems_are_refused(make):
    with pytest.raises(InputError):
        make()
