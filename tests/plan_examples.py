"""Random small scheduling problems in whole seconds and watts, and two ways to check schedules."""

from __future__ import annotations

import itertools
import math

from hypothesis import strategies as st

from joulecast.uses.plan import Battery, ChargingWindow, PlanDevice, Problem, Task, TaskCost


@st.composite
def batteries(draw, max_s=24):
    """Draw a battery with up to two charging windows."""
    capacity = draw(st.integers(20, 120))
    edges = sorted(draw(st.sets(st.integers(0, max_s), max_size=4)))
    windows = tuple(
        ChargingWindow(float(a), float(b), float(draw(st.integers(1, 9))))
        for a, b in zip(edges[::2], edges[1::2], strict=False)
    )
    charge, reserve = draw(st.integers(0, capacity)), draw(st.integers(0, capacity // 2))
    return Battery(float(capacity), float(charge), float(reserve), windows)


@st.composite
def devices(draw, name):
    """Draw a device, with or without a battery."""
    awake = draw(st.integers(0, 3))
    return PlanDevice(
        name,
        float(awake),
        float(draw(st.integers(0, awake))),
        draw(st.sampled_from([math.inf, 4.0 * 2**20])),
        draw(st.integers(1, 2)),
        draw(st.none() | batteries()),
    )


@st.composite
def problems(draw, max_tasks=4, max_devices=2, max_s=10, whole=True):
    """Draw a problem: whole seconds and deadlines, or fractions and some without deadline."""
    stretch = 1.0 if whole else draw(st.floats(0.5, 2.0))
    found = tuple(draw(devices(f"m{at}")) for at in range(draw(st.integers(1, max_devices))))
    tasks = []
    for at in range(draw(st.integers(1, max_tasks))):
        costs = {
            device.name: TaskCost(
                stretch * draw(st.integers(1, 4)),
                float(draw(st.integers(0, 30))),
                draw(st.integers(1, 5)) * 2.0**20,
            )
            for device in found
        }
        release = draw(st.integers(0, 4))
        deadline = release + draw(st.integers(2, max_s - release))
        is_due = whole or draw(st.booleans())
        tasks.append(Task(f"t{at}", costs, float(release), float(deadline) if is_due else math.inf))
    return Problem(found, tuple(tasks))


def simulate(problem, schedule, parts=8):
    """Follow the charge in small steps, without the replay's code: (least room, energy)."""
    energy, least = 0.0, math.inf
    for device in problem.devices:
        here = [one for one in schedule if one.device == device.name]
        if not here:
            continue
        first, last = min(one.start_s for one in here), max(one.end_s for one in here)
        held = device.battery.charge_j if device.battery else 0.0
        for step in range(round(last * parts) + 1):
            now = step / parts
            if device.battery and now >= first:
                least = min(least, held - device.battery.reserve_j)
            if now >= last:
                break
            power = device.awake_w if now >= first else device.asleep_w
            for one in here:
                if one.start_s <= now < one.end_s:
                    cost = problem.task[one.task].costs[device.name]
                    power += cost.extra_j / cost.duration_s
            if now >= first:
                energy += power / parts
            if device.battery:
                charging = sum(w.power_w for w in device.windows if w.start_s <= now < w.end_s)
                held = min(device.battery.capacity_j, held + (charging - power) / parts)
    return least, energy


def list_schedules(problem):
    """Yield every schedule that starts its tasks at whole seconds, also partial ones."""
    choices = []
    for task in problem.tasks:
        places = [
            problem.assign(task.name, name, float(start))
            for name, cost in task.costs.items()
            for start in range(int(task.release_s), int(task.deadline_s - cost.duration_s) + 1)
        ]
        choices.append([None, *places])
    for schedule in itertools.product(*choices):
        yield tuple(one for one in schedule if one is not None)
