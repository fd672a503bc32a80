"""Plot a plan: jobs on their devices over time, and the charge of batteries."""

from __future__ import annotations

from joulecast.uses.plan.plan_result import Plan
from joulecast.uses.plan.plan_summary import PlannedDevice, PlanSummary, read_plan
from joulecast.views.plot_kinds import DeviceSchedule, ScheduledJob, plot_timeline
from joulecast.views.report import Plot
from joulecast.views.words import format_with_interval, plural


def plot_plan(plan: Plan | PlanSummary) -> Plot:
    """Plot every device that runs a job."""
    found = read_plan(plan.to_dict()) if isinstance(plan, Plan) else plan
    energy = format_with_interval(found.energy_j, found.interval_j, 0.95, found.provenance)
    if found.confidence > 0.5:
        energy += f"; planned with upper bounds at {100 * found.confidence:g} %"
    title = f"{plural(found.job_count, 'job')} on {plural(len(found.devices), 'device')}"
    rows = [_make_row(device) for device in found.devices]
    return plot_timeline(rows, title, found.provenance, f"{energy}.")


def _make_row(device: PlannedDevice) -> DeviceSchedule:
    jobs = tuple(ScheduledJob(one.job, one.start_s, one.end_s) for one in device.jobs)
    if device.charge is None:
        return DeviceSchedule(device.device, jobs)
    return DeviceSchedule(
        device.device, jobs, device.charge, device.reserve_share, device.charging_windows
    )
