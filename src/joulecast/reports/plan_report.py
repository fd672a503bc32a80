"""Report a plan: which job runs when on which device, and the charge of batteries."""

from __future__ import annotations

from joulecast.units import format_duration, format_energy, format_interval, format_share
from joulecast.uses.plan import PlanSummary
from joulecast.uses.plan.plan_plot import plot_plan
from joulecast.views.report import Block, Heading, Report, Table, Text, list_facts, make_table
from joulecast.views.words import format_with_interval, plural

_NOT_MODELLED = (
    "Not modelled: slowdown of jobs that run at the same time, charging losses, cold or aged "
    "batteries, and moving data between devices."
)


def report_plan(plan: PlanSummary) -> Report:
    """Return the report of a plan."""
    jobs, devices = plural(plan.job_count, "job"), plural(len(plan.devices), "device")
    energy = format_with_interval(plan.energy_j, plan.interval_j, 0.95, plan.provenance)
    lead = f"{jobs} on {devices} take {energy}." if plan.job_count else "No job can run."
    blocks: tuple[Block, ...] = (
        Text(lead, "lead"),
        *(Text(f"{one.job} cannot run.", "warning") for one in plan.left_out),
        *([plot_plan(plan)] if plan.job_count else []),
        _list_jobs(plan),
        Heading("How it was made"),
        _list_facts(plan),
        Text(_NOT_MODELLED, "note"),
    )
    return Report(f"Plan of {jobs} on {devices}", blocks, plan.provenance, "plan")


def _find_end_s(plan: PlanSummary) -> float:
    return max((job.end_s for one in plan.devices for job in one.jobs), default=0.0)


def _list_jobs(plan: PlanSummary) -> Table:
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
    return make_table(columns, rows, "Jobs, from the beginning of the plan")


def _format_time(at_s: float) -> str:
    return "now" if at_s < 1 else format_duration(at_s)


def _list_facts(plan: PlanSummary) -> Table:
    gap = "optimal" if plan.is_optimal else f"within {format_share(plan.gap_share)} of the optimum"
    return list_facts(
        (
            ("Finished after", format_duration(_find_end_s(plan))),
            ("Times count from", plan.now),
            ("Each job stays below its plan with a probability of", format_share(plan.confidence)),
            ("Quality", gap),
            ("Idle energy between jobs", format_energy(plan.idle_j) if plan.idle_j else ""),
            ("Meters cover", ", ".join(plan.covers)),
            ("Provenance", plan.provenance),
        )
    )
