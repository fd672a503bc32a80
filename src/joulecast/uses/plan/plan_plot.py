"""Plot a plan: jobs on their devices over time, and the charge of batteries."""

from __future__ import annotations

from joulecast.figures import Caption, DeviceSchedule, Plot, ScheduledJob, plot_timeline
from joulecast.units import format_duration, format_energy
from joulecast.uses.plan.plan_result import Plan
from joulecast.uses.plan.plan_summary import PlannedDevice, PlannedJob, PlanSummary, read_plan


def plot_plan(plan: Plan | PlanSummary) -> Plot:
    """Plot every device that runs a job."""
    found = read_plan(plan.to_dict()) if isinstance(plan, Plan) else plan
    subtitle = _format_energy(found.energy_j, *found.interval_j)
    if found.confidence > 0.5:
        subtitle += f"; planned with upper bounds at {100 * found.confidence:g} %"
    jobs, count = found.job_count, len(found.devices)
    title = f"{jobs} job{'s' * (jobs > 1)} on {count} device{'s' * (count > 1)}"
    rows = [_make_row(device) for device in found.devices]
    return plot_timeline(rows, Caption(title, subtitle, found.provenance))


def _make_row(device: PlannedDevice) -> DeviceSchedule:
    jobs = tuple(
        ScheduledJob(one.job, one.start_s, one.end_s, _describe(device, one)) for one in device.jobs
    )
    if device.charge is None:
        return DeviceSchedule(device.device, jobs)
    return DeviceSchedule(
        device.device, jobs, device.charge, device.reserve_share, device.charging_windows
    )


def _describe(device: PlannedDevice, one: PlannedJob) -> str:
    return (
        f"{one.job} on {device.device}\n"
        f"from {format_duration(one.start_s)} to {format_duration(one.end_s)}\n"
        f"{_format_energy(one.energy_j, *one.interval_j)}"
    )


def _format_energy(mean_j: float, low_j: float, high_j: float) -> str:
    low, high = format_energy(low_j), format_energy(high_j)
    return f"{format_energy(mean_j)} (95 % interval {low}–{high})"
