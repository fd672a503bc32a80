"""Report a plan: which job runs when on which device, and the charge of batteries."""

from __future__ import annotations

from joulecast.features.plan.result import Plan, PlannedDevice
from joulecast.figures import Caption, DeviceSchedule, Plot, ScheduledJob, plot_timeline
from joulecast.records import weakest_provenance
from joulecast.reports.report import Report, ReportTable, Section
from joulecast.reports.report_values import count_things, format_estimate, list_values
from joulecast.units import format_duration, format_energy, format_interval, format_share

_NOT_MODELLED = (
    "Not modelled: slowdown of jobs that run at the same time, charging losses, cold or aged "
    "batteries, and moving data between devices."
)


def report_plan(plan: Plan) -> Report:
    """Return the report of a plan."""
    jobs, devices = count_things(len(plan.jobs), "job"), count_things(len(plan.devices), "device")
    energy = format_estimate(plan.energy_j, plan.interval_j)
    left_out = tuple(f"{one.job} cannot run." for one in plan.left_out)
    return Report(
        "plan",
        f"Plan of {jobs} on {devices}",
        f"{jobs} on {devices} take {energy}." if len(plan.jobs) else "No job can run.",
        _find_provenance(plan),
        (
            Section(
                "Timeline",
                left_out,
                (_list_jobs(plan),),
                {"plan": plot_plan(plan)} if len(plan.jobs) else {},
            ),
            Section("How it was made", (_NOT_MODELLED,), (_list_facts(plan),)),
        ),
        (
            ("Energy", format_energy(plan.energy_j)),
            ("Jobs", str(len(plan.jobs))),
            ("Left out", str(len(plan.left_out))),
            ("Finished after", format_duration(_find_end_s(plan))),
        ),
    )


def _find_provenance(plan: Plan) -> str:
    return weakest_provenance(job.provenance for _, job in plan.jobs)


def plot_plan(plan: Plan) -> Plot:
    """Plot every device that runs a job."""
    subtitle = format_estimate(plan.energy_j, plan.interval_j)
    count = len(plan.devices)
    title = f"{count_things(len(plan.jobs), 'job')} on {count_things(count, 'device')}"
    rows = [_make_row(device) for device in plan.devices]
    return plot_timeline(rows, Caption(title, subtitle, _find_provenance(plan)))


def _make_row(device: PlannedDevice) -> DeviceSchedule:
    jobs = tuple(ScheduledJob(one.job, one.start_s, one.end_s) for one in device.jobs)
    if device.charge is None:
        return DeviceSchedule(device.device, jobs)
    return DeviceSchedule(
        device.device, jobs, device.charge, device.reserve_share, device.charging_windows
    )


def _find_end_s(plan: Plan) -> float:
    return max((job.end_s for one in plan.devices for job in one.jobs), default=0.0)


def _list_jobs(plan: Plan) -> ReportTable:
    rows = tuple(
        (
            job.job,
            device.device,
            _format_time(job.start_s),
            _format_time(job.end_s),
            format_energy(job.energy_j),
            format_interval(job.interval_j, format_energy),
            "mains" if job.charge_share is None else format_share(job.charge_share),
            job.provenance,
        )
        for device in plan.devices
        for job in device.jobs
    )
    columns = (
        "job", "device", ">start", ">end", ">energy", ">95 % interval", ">charge after",
        "provenance",
    )  # fmt: skip
    return ReportTable("Jobs, from the beginning of the plan", columns, rows)


def _format_time(at_s: float) -> str:
    return "now" if at_s < 1 else format_duration(at_s)


def _list_facts(plan: Plan) -> ReportTable:
    gap = "optimal" if plan.is_optimal else f"within {format_share(plan.gap_share)} of the optimum"
    return list_values(
        "Details of the plan",
        (
            ("Times count from", plan.now),
            ("Each job stays below its plan with a probability of", format_share(plan.confidence)),
            ("Quality", gap),
            ("Idle energy between jobs", format_energy(plan.idle_j) if plan.idle_j else ""),
            ("Meters cover", ", ".join(plan.covers)),
            ("Provenance", _find_provenance(plan)),
        ),
    )
