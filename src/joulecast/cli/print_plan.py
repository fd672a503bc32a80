"""Print what ``joulecast plan`` found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from joulecast.cli.terminal import (
    describe_provenance,
    format_interval,
    format_level,
    format_with_interval,
    make_console,
    plural,
    print_notes,
    print_table,
)
from joulecast.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_power,
    format_share,
)
from joulecast.uses.plan import DeviceRun, LeftOut, LeftOutReason, Plan, PlanDevice
from joulecast.uses.plan.solve import GOOD_GAP_SHARE

if TYPE_CHECKING:
    from rich.console import Console

_LEVEL = 0.95
_COLUMNS = (
    "device",
    "job",
    ">start",
    ">end",
    ">energy",
    f">{format_level(_LEVEL)}",
    ">charge after",
)
_EVEN = 0.5
_MAX_LEFT_OUT = 12
_MAX_REASONS = 2
# Shares above which a note is worth printing.
_MIN_UNSEEN_SHARE = 0.01
_MIN_IDLE_SHARE = 0.001
_NOT_MODELLED = (
    "Not modelled: slowdown of jobs that run at the same time, charging losses, cold or aged "
    "batteries, and moving data between devices."
)


def print_plan(plan: Plan, plot: str | None) -> None:
    """Print the schedule, jobs that cannot run, and notes."""
    console = make_console()
    rows = [row for pair in plan.list_runs() for row in _list_rows(plan, *pair)]
    if rows:
        _print_totals(console, plan)
        print_table(console, _COLUMNS, rows)
    for job in plan.left_out[:_MAX_LEFT_OUT]:
        console.print(_describe_left_out(job), style="bold")
    if len(plan.left_out) > _MAX_LEFT_OUT:
        console.print(f"{len(plan.left_out) - _MAX_LEFT_OUT} more jobs cannot run: see --json")
    if plan.left_out:
        more = "A longer --time-limit might fit more jobs."
        console.print("" if plan.solution.runs_most else more)
    notes = _list_notes(plan) if rows else [_NOT_MODELLED]
    print_notes(console, notes + ([f"Plotted in {plot}."] if plot else []))


def _print_totals(console: Console, plan: Plan) -> None:
    schedule = plan.solution.schedule
    end_s = max(one.end_s for one in schedule)
    energy = format_with_interval(plan.energy_j, plan.interval_j, _LEVEL, plan.provenance)
    console.print(
        f"{plural(len(schedule), 'job')} on {len(plan.list_runs())} of {len(plan.problem.devices)} "
        f"devices: {energy}.",
        style="bold",
    )
    if plan.confidence > _EVEN:
        planned = format_energy(plan.solution.energy_j)
        console.print(
            f"Planned with {planned}: each job stays below its energy and time with a probability "
            f"of {100 * plan.confidence:g} %."
        )
    console.print(f"Finished after {format_duration(end_s)}. {_describe_gap(plan)}\n")


def _describe_gap(plan: Plan) -> str:
    solution = plan.solution
    if solution.is_optimal:
        return "The plan is optimal."
    share = format_share(solution.gap_share)
    if solution.gap_share <= GOOD_GAP_SHARE:
        return f"The plan is within {share} of the optimum."
    bound = format_energy(solution.lower_bound_j)
    text = f"the optimum could take up to {share} less (lower bound {bound})."
    return f"Stopped by the time limit: {text}" if solution.timed_out else text.capitalize()


def _list_rows(plan: Plan, device: PlanDevice, run: DeviceRun) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in run.assignments:
        mean_j, *ends_j = plan.job_energy_j(one)
        share = plan.charge_share(device, run, one.end_s)
        rows.append(
            (
                device.name,
                one.task,
                _format_time(one.start_s),
                _format_time(one.end_s),
                format_energy(mean_j),
                format_interval(ends_j, format_energy),
                "mains" if share is None else format_share(share),
            )
        )
    return rows


def _format_time(at_s: float) -> str:
    return "now" if at_s < 1 else format_duration(at_s)


def _describe_left_out(job: LeftOut) -> str:
    if not job.reasons:
        return f"{job.job} cannot run: no device may run it."
    reasons = "; ".join(_describe_reason(reason) for reason in job.reasons[:_MAX_REASONS])
    more = len(job.reasons) - _MAX_REASONS
    others = f"; and {plural(more, 'more device')}" if more > 0 else ""
    company = "" if job.is_alone else " together with the others"
    return f"{job.job} cannot run{company}: {reasons}{others}."


def _describe_reason(reason: LeftOutReason) -> str:
    if math.isinf(reason.missing):
        return f"{reason.kind} of {reason.device}"
    texts = {
        "battery": f"the battery of {reason.device} lacks {format_energy(reason.missing)}",
        "deadline": f"on {reason.device} it would be {format_duration(reason.missing)} late",
        "memory": f"the memory of {reason.device} lacks {format_bytes(reason.missing)}",
    }
    return texts[reason.kind] + ("" if reason.is_alone else ", as planned")


def _list_notes(plan: Plan) -> list[str]:
    notes = [f"Times count from {plan.now:%Y-%m-%d %H:%M}."]
    if plan.idle_j > _MIN_IDLE_SHARE * plan.energy_j:
        idle = format_energy(plan.idle_j)
        notes.append(f"{idle} of the energy is idle power of devices that wait between jobs.")
    if plan.shared_j:
        shared = format_energy(plan.shared_j)
        notes.append(
            f"Jobs that run at the same time share the idle power of their device, which saves "
            f"{shared}."
        )
    if asleep := _list_asleep(plan.list_runs()):
        notes.append(f"Before its first job a device sleeps at asleep_w: {', '.join(asleep)}.")
    return [*notes, *_explain_unseen(plan), _explain_provenance(plan), _NOT_MODELLED]


def _explain_provenance(plan: Plan) -> str:
    """Return the provenance; powers that the file states were not metered."""
    metered = ""
    if plan.covers:
        metered = (
            f" The meters cover {', '.join(plan.covers)}: give the power of everything else as "
            "rest_w."
        )
    if not plan.stated_devices:
        return f"Provenance: {describe_provenance(plan.provenance)}.{metered}"
    text = "modelled, not measured: FLOPs / flops_per_s at a stated power_w"
    if plan.provenance != "modelled":
        text = f"{describe_provenance(plan.provenance)}; {text}"
    return f"Provenance: {text} ({', '.join(plan.stated_devices)}).{metered}"


def _list_asleep(runs: list[tuple[PlanDevice, DeviceRun]]) -> list[str]:
    waits = [(device, run.assignments[0].start_s) for device, run in runs if device.battery]
    return [
        f"{device.name} {format_power(device.asleep_w)} for {format_duration(start_s)}"
        for device, start_s in waits
        if start_s >= 1
    ]


def _explain_unseen(plan: Plan) -> list[str]:
    where: Mapping[str, str] = {one.task: one.device for one in plan.solution.schedule}
    unseen = [
        f"{job} on {device}"
        for job, device in where.items()
        if plan.costs[job][device].unseen_share > _MIN_UNSEEN_SHARE
    ]
    if not unseen:
        return []
    return [
        f"Extrapolated to layers that were never measured there: {', '.join(unseen)}; run "
        "`joulecast profile NET --missing` on the device."
    ]
