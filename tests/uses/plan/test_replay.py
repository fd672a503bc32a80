"""The replay finds every violation and counts the energy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.uses.plan import (
    Assignment,
    Battery,
    ChargingWindow,
    PlanDevice,
    Problem,
    Task,
    TaskCost,
    replay,
)
from plan_examples import problems, simulate


@given(problems(), st.data())
@settings(max_examples=60, deadline=None)
def test_replay_agrees_with_small_steps(problem, data):
    schedule = []
    for task in problem.tasks:
        device = data.draw(st.sampled_from(problem.devices)).name
        schedule.append(problem.assign(task.name, device, float(data.draw(st.integers(0, 6)))))
    replayed = replay(problem, schedule)
    least, energy = simulate(problem, schedule)
    assert replayed.energy_j == pytest.approx(energy, abs=1e-6)
    worst = max((one.missing for one in replayed.violations if one.kind == "battery"), default=0.0)
    # Small steps notice a full battery a little late, and nothing else.
    coarse = 9 / 8
    assert (worst > coarse) <= (least < 0)
    assert (least < -coarse) <= (worst > 0)
    if worst and least < 0:
        assert worst == pytest.approx(-least, abs=coarse)


def test_idle_energy_flows_between_tasks_and_is_counted_once():
    cost = TaskCost(10.0, 50.0)
    device = PlanDevice("m", awake_w=2.0, max_parallel=2)
    problem = Problem((device,), (Task("a", {"m": cost}), Task("b", {"m": cost})))

    def run(second_s):
        schedule = [
            Assignment("a", "m", 0.0, 10.0),
            Assignment("b", "m", second_s, second_s + 10.0),
        ]
        return replay(problem, schedule).runs["m"]

    assert cost.energy_j(device) == 70.0
    after, apart, together = run(10.0), run(15.0), run(0.0)
    assert (after.energy_j, after.idle_j, after.shared_j) == pytest.approx((140, 0, 0))
    assert (apart.energy_j, apart.idle_j, apart.shared_j) == pytest.approx((150, 10, 0))
    assert (together.energy_j, together.idle_j, together.shared_j) == pytest.approx((120, 0, 20))


def test_full_battery_takes_no_more_charge():
    battery = Battery(100.0, 90.0, 50.0, (ChargingWindow(0.0, 10.0, 5.0),))
    task = Task("a", {"m": TaskCost(10.0, 60.0)})
    problem = Problem((PlanDevice("m", battery=battery),), (task,))
    replayed = replay(problem, [Assignment("a", "m", 10.0, 20.0)])
    (one,) = replayed.violations
    assert (one.kind, one.missing, one.full_s) == ("battery", pytest.approx(10.0), 10.0)
    assert max(point.charge_j for point in replayed.runs["m"].charge) == 100.0


@pytest.mark.parametrize(
    ("schedule", "kind", "missing"),
    [
        ([Assignment("a", "m", 0.0, 10.0)], "release", 1.0),
        ([Assignment("a", "m", 25.0, 35.0)], "deadline", 5.0),
        ([Assignment("a", "m", 5.0, 15.0), Assignment("b", "m", 6.0, 16.0)], "parallel", 1.0),
        ([Assignment("a", "n", 5.0, 15.0), Assignment("b", "n", 6.0, 16.0)], "memory", 2.0),
        ([Assignment("a", "m", 5.0, 15.0), Assignment("a", "n", 5.0, 15.0)], "tasks", 1.0),
        ([Assignment("a", "m", 5.0, 12.0)], "tasks", 1.0),
    ],
)
def test_violations_say_how_much_is_missing(schedule, kind, missing):
    cost = TaskCost(10.0, 1.0, 5.0)
    tasks = tuple(Task(name, {"m": cost, "n": cost}, 1.0, 30.0) for name in "ab")
    devices = (PlanDevice("m"), PlanDevice("n", max_parallel=2, memory_bytes=8.0))
    violations = replay(Problem(devices, tasks), schedule).violations
    (found,) = {(one.kind, one.missing) for one in violations}
    assert found == (kind, pytest.approx(missing))
