"""The relaxation bounds every schedule."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.uses.plan import replay
from joulecast.uses.plan.relaxation import list_shares, relax
from joulecast.uses.plan.solve import rank
from joulecast.uses.plan.time_grid import find_horizon
from plan_examples import list_schedules, problems


@given(problems(max_tasks=3))
@settings(max_examples=25, deadline=None)
def test_bound_holds_for_every_schedule(problem):
    valid = [s for s in list_schedules(problem) if not replay(problem, s).violations]
    priority, energy_j = min(rank(problem, schedule) for schedule in valid)
    relaxed = relax(problem, -priority, find_horizon(problem))
    assert relaxed is not None
    assert relaxed.bound_j <= energy_j * (1 + 1e-6) + 1e-6


@given(problems(), st.lists(st.integers(0, 8), min_size=4, max_size=4))
@settings(max_examples=100, deadline=None)
def test_parallel_tasks_never_occupy_more_than_a_device(problem, starts):
    for device in problem.devices:
        schedule = []
        for task, start_s in zip(problem.tasks, starts, strict=False):
            free = replace(task, release_s=0.0, deadline_s=math.inf)
            one = problem.assign(free.name, device.name, float(start_s))
            violations = replay(problem, [*schedule, one]).violations
            if not {violation.kind for violation in violations} & {"parallel", "memory"}:
                schedule.append(one)
        costs = [task.costs[device.name] for task in problem.tasks]
        for shares in list_shares(device, costs):
            share = dict(zip(problem.task, shares, strict=True))
            for at_s in range(13):
                running = [one for one in schedule if one.start_s <= at_s < one.end_s]
                assert sum(share[one.task] for one in running) <= 1 + 1e-9
