"""A plan as a picture: jobs on their devices over time, and what batteries hold."""

from __future__ import annotations

from joulecast.figures import Caption, DeviceSchedule, Plot, ScheduledJob, plot_timeline
from joulecast.units import format_duration, format_energy
from joulecast.uses.plan.problem import Machine, Slot
from joulecast.uses.plan.replay import MachineRun
from joulecast.uses.plan.result import Plan


def draw_plan(plan: Plan) -> Plot:
    """Every device that has something to do."""
    lanes = [_make_lane(plan, machine, run) for machine, run in plan.list_runs()]
    low, high = (format_energy(end_j) for end_j in plan.interval_j)
    about = f"{format_energy(plan.expected_j)}, {low} to {high} with 95 %"
    if plan.confidence > 0.5:
        about += f"; planned with upper bounds at {100 * plan.confidence:g} %"
    title = f"{_count(len(plan.solution.slots), 'job')} on {_count(len(lanes), 'device')}"
    return plot_timeline(lanes, Caption(title, about, plan.provenance))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number > 1 else "")


def _make_lane(plan: Plan, machine: Machine, run: MachineRun) -> DeviceSchedule:
    stays = tuple(
        ScheduledJob(slot.task, slot.start_s, slot.end_s, _say_slot(plan, machine, slot))
        for slot in run.slots
    )
    battery = machine.battery
    if battery is None:
        return DeviceSchedule(machine.name, stays)
    charge = tuple((m.at_s, m.charge_j / battery.capacity_j) for m in run.moments)
    windows = tuple((window.from_s, window.to_s) for window in battery.windows)
    reserve_share = battery.reserve_j / battery.capacity_j
    return DeviceSchedule(machine.name, stays, charge, reserve_share, windows)


def _say_slot(plan: Plan, machine: Machine, slot: Slot) -> str:
    mean, low, high = map(format_energy, plan.job_j(slot))
    return (
        f"{slot.task} on {machine.name}\n"
        f"from {format_duration(slot.start_s)} to {format_duration(slot.end_s)}\n"
        f"{mean}, {low} to {high} with 95 %"
    )
