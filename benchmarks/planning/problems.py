"""Draw random scheduling problems for both scripts."""

from __future__ import annotations

import random
from collections.abc import Sequence

from joulecast.features.plan.problem import (
    Battery,
    ChargingWindow,
    PlanDevice,
    Problem,
    Task,
    TaskCost,
)

HOUR_S, DAY_S, WH_J, GIB = 3600.0, 86400.0, 3600.0, 2.0**30


def draw_problem(jobs: int, devices: int, seed: int) -> Problem:
    """Draw devices, and jobs of 10 to 90 minutes on a device of average speed."""
    rng = random.Random(seed)
    drawn, powers = [], {}
    for at in range(devices):
        awake_w = rng.uniform(0.5, 8.0)
        powers[f"device{at}"] = (rng.uniform(5.0, 60.0), rng.uniform(0.3, 3.0))
        battery = draw_battery(rng, jobs / devices) if rng.random() < 0.6 else None
        memory_bytes = rng.choice((8, 16, 32)) * GIB
        drawn.append(
            PlanDevice(
                f"device{at}",
                idle_w=awake_w,
                asleep_w=0.1 * awake_w,
                memory_bytes=memory_bytes,
                max_parallel=rng.choice((1, 1, 2)),
                battery=battery,
            )
        )
    tasks = tuple(draw_task(rng, at, drawn, powers) for at in range(jobs))
    return Problem(tuple(drawn), tasks)


def draw_battery(rng: random.Random, jobs_each: float) -> Battery:
    """Draw a battery for a few jobs, with up to two charging windows."""
    capacity_j = rng.uniform(15.0, 90.0) * WH_J * max(1.0, jobs_each / 4)
    windows, at_s = [], rng.uniform(0.0, 6.0) * HOUR_S
    for _ in range(rng.randint(0, 2)):
        end_s = at_s + rng.uniform(1.0, 4.0) * HOUR_S
        windows.append(ChargingWindow(at_s, end_s, rng.uniform(15.0, 65.0)))
        at_s = end_s + rng.uniform(1.0, 5.0) * HOUR_S
    charge_j, reserve_j = capacity_j * rng.uniform(0.3, 1.0), 0.1 * capacity_j
    return Battery(capacity_j, charge_j, reserve_j, tuple(windows))


def draw_task(
    rng: random.Random,
    at: int,
    devices: Sequence[PlanDevice],
    powers: dict[str, tuple[float, float]],
) -> Task:
    """Draw a job that four of five devices may run, due within a day of its release."""
    work_s, size_bytes = rng.uniform(600.0, 5400.0), rng.uniform(1.0, 14.0) * GIB
    release_s = rng.choice((0.0, 0.0, rng.uniform(0.0, DAY_S / 4)))
    deadline_s = release_s + rng.uniform(0.3, 1.0) * DAY_S
    costs = {}
    for device in devices:
        power_w, speed = powers[device.name]
        if rng.random() < 0.8:
            extra_j = max(0.0, power_w - device.awake_w) * work_s / speed
            costs[device.name] = TaskCost(work_s / speed, extra_j, size_bytes)
    return Task(f"job{at}", costs, release_s, deadline_s)
