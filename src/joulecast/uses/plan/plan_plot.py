"""Plot a plan: jobs on their devices over time, and the charge of batteries."""

from __future__ import annotations

from joulecast.figures import Caption, DeviceSchedule, Plot, ScheduledJob, plot_timeline
from joulecast.units import format_duration, format_energy
from joulecast.uses.plan.plan_result import Plan
from joulecast.uses.plan.problem import Assignment, PlanDevice
from joulecast.uses.plan.replay import DeviceRun


def plot_plan(plan: Plan) -> Plot:
    """Plot every device that runs a job."""
    devices = [_make_row(plan, device, run) for device, run in plan.list_runs()]
    subtitle = _format_energy(plan.energy_j, *plan.interval_j)
    if plan.confidence > 0.5:
        subtitle += f"; planned with upper bounds at {100 * plan.confidence:g} %"
    jobs, count = len(plan.solution.schedule), len(devices)
    title = f"{jobs} job{'s' * (jobs > 1)} on {count} device{'s' * (count > 1)}"
    return plot_timeline(devices, Caption(title, subtitle, plan.provenance))


def _make_row(plan: Plan, device: PlanDevice, run: DeviceRun) -> DeviceSchedule:
    jobs = tuple(
        ScheduledJob(one.task, one.start_s, one.end_s, _describe(plan, one))
        for one in run.assignments
    )
    battery = device.battery
    if battery is None:
        return DeviceSchedule(device.name, jobs)
    charge = tuple((point.at_s, point.charge_j / battery.capacity_j) for point in run.charge)
    windows = tuple((window.start_s, window.end_s) for window in battery.windows)
    reserve_share = battery.reserve_j / battery.capacity_j
    return DeviceSchedule(device.name, jobs, charge, reserve_share, windows)


def _describe(plan: Plan, one: Assignment) -> str:
    return (
        f"{one.task} on {one.device}\n"
        f"from {format_duration(one.start_s)} to {format_duration(one.end_s)}\n"
        f"{_format_energy(*plan.job_energy_j(one))}"
    )


def _format_energy(mean_j: float, low_j: float, high_j: float) -> str:
    low, high = format_energy(low_j), format_energy(high_j)
    return f"{format_energy(mean_j)} (95 % interval {low}–{high})"
