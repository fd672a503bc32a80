"""``joulecast plan jobs.toml``: which job runs when on which device, at least energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from joulecast.api.nets import resolve_net
from joulecast.api.profiles import resolve_profile
from joulecast.cli import options
from joulecast.cli.show import (
    join_ends,
    make_console,
    mark_basis,
    print_json,
    print_notes,
    print_table,
    say_basis,
)
from joulecast.errors import FileError, InputError, JoulecastError
from joulecast.records import Network, Profile, Setup
from joulecast.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_power,
    format_share,
)
from joulecast.uses.plan import Ask, Job, LeftOut, Plan, Reason, estimate_jobs, plan_jobs, read_ask
from joulecast.uses.plan.problem import Machine
from joulecast.uses.plan.replay import MachineRun
from joulecast.uses.plan.solve import ENOUGH

_COLUMNS = ("device", "job", ">start", ">end", ">energy", ">95 % interval", ">charge then")
_EVEN = 0.5
_MOST_LEFT_OUT = 12
_MOST_REASONS = 2
_MUCH_UNSEEN = 0.01
_MUCH_IDLE = 0.001
_NOT_MODELLED = (
    "Not modelled: that jobs at once slow each other down, that charging loses energy, that a cold "
    "or old battery gives less, and moving data between devices."
)


def read_now(ctx: Any, param: Any, value: str | None) -> datetime:
    """Of a callback of click: a time, else the time that it is; without a zone it is local."""
    if value is None:
        return datetime.now().replace(microsecond=0)
    try:
        return datetime.fromisoformat(value)
    except ValueError as error:
        words = f"{value!r} is no time: give one like 2030-05-01T22:00"
        raise click.BadParameter(words, ctx, param) from error


@click.command()
@click.argument("jobs", metavar="JOBS.TOML")
@click.option(
    "--confidence",
    default="50%",
    callback=options.read_share,
    help="Plan with joules and seconds that each job stays below so surely.  [default: 50%]",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    help="Seconds; then the best plan so far is taken, with a bound on what is missed.",
)
@click.option("--out", metavar="FILE", help="Also draw it: a .html page, or .svg or .png.")
@click.option("--now", callback=read_now, metavar="TIME", help="Plan as if it were this time.")
@options.estimator
@options.store
@options.json
def plan(
    jobs: str,
    confidence: float,
    time_limit: float,
    out: str | None,
    now: datetime,
    estimator: str,
    store: str | None,
    json: bool,
) -> None:
    """Say which job runs when on which device: all in time, no battery below its reserve, and at
    least energy.

    JOBS.TOML holds [[job]] tables (name, net, steps, release, deadline …) and [[device]] tables
    (name, profile, battery_wh, charge, reserve, charging …).
    """
    if not _EVEN <= confidence < 1:
        words = "--confidence is at least 50% and below 100%"
        raise click.UsageError(words, click.get_current_context())
    if out is not None:
        _find_saver(out)
    ask = read_ask(jobs, now)
    nets = {job.name: find_net(job, jobs) for job in ask.jobs}
    profiles = find_profiles(ask, jobs, store)
    costs = estimate_jobs(ask, nets, profiles, estimator)
    try:
        found = plan_jobs(ask, costs, profiles, now, confidence, time_limit)
    except InputError as error:
        raise FileError(f"{jobs}: {error}") from error
    if out is not None and found.solution.slots:
        from joulecast.uses.plan.pictures import draw_plan

        _find_saver(out)(draw_plan(found), out)
    if json:
        print_json(found.to_dict())
    else:
        _print_plan(found, out)


def find_net(job: Job, path: str) -> tuple[Network, Setup]:
    """The network of a job, and its setup with the batch that holds for it."""
    try:
        found = resolve_net(job.net, job.setup.get("batch"), job.input_shape)
        return found.network, replace(Setup(**job.setup), batch=found.batch)
    except InputError as error:
        raise FileError(f"{path}: [[job]] {job.name}: {error}") from error


def find_profiles(ask: Ask, path: str, store: str | None) -> dict[str, Profile]:
    """The profiles of devices that have no stated power; a device's own name may name it."""
    found = {}
    for station in ask.stations:
        if station.power_w is None:
            try:
                found[station.name] = resolve_profile(station.profile or station.name, store)
            except JoulecastError as error:
                raise type(error)(f"{path}: [[device]] {station.name}: {error}") from error
    return found


def _find_saver(out: str) -> Any:
    from joulecast.figures import save_html, save_png, save_svg

    savers = {".html": save_html, ".svg": save_svg, ".png": save_png}
    if Path(out).suffix.lower() not in savers:
        raise InputError(f"--out {out}: give a file that ends in .html, .svg or .png")
    return savers[Path(out).suffix.lower()]


# ---------------------------------------------------------------------------------------------
# For people


def _print_plan(found: Plan, out: str | None) -> None:
    console = make_console()
    rows = [row for pair in found.list_runs() for row in _list_rows(found, *pair)]
    if rows:
        _print_total(console, found)
        print_table(console, _COLUMNS, rows)
    for one in found.left_out[:_MOST_LEFT_OUT]:
        console.print(_say_left_out(one), style="bold")
    if len(found.left_out) > _MOST_LEFT_OUT:
        console.print(f"{len(found.left_out) - _MOST_LEFT_OUT} more cannot run: see --json")
    if found.left_out:
        console.print("" if found.solution.is_most else "More might be found with more time.")
    notes = _list_notes(found) if rows else [_NOT_MODELLED]
    print_notes(console, notes + ([f"Drawn in {out}."] if out and rows else []))


def _print_total(console: Any, found: Plan) -> None:
    slots = found.solution.slots
    ends = join_ends(*(format_energy(end_j) for end_j in found.interval_j))
    count = f"{len(slots)} job{'s' if len(slots) > 1 else ''}"
    ends_s = max(slot.end_s for slot in slots)
    console.print(
        f"{count} on {len(found.list_runs())} of {len(found.problem.machines)} devices: "
        f"{format_energy(found.expected_j)}{mark_basis(found.basis)}, {ends} with 95 %.",
        style="bold",
    )
    if found.confidence > _EVEN:
        planned = format_energy(found.solution.energy_j)
        console.print(
            f"Planned with {planned}: each job stays below its joules and seconds with "
            f"{100 * found.confidence:g} %."
        )
    console.print(f"All over in {format_duration(ends_s)}. {_say_gap(found)}\n")


def _say_gap(found: Plan) -> str:
    if found.solution.is_best:
        return "No plan takes less."
    if found.solution.gap_share <= ENOUGH:
        return f"No plan takes more than {format_share(found.solution.gap_share)} less."
    words = (
        f"he best plan could take up to {format_share(found.solution.gap_share)} less (no plan "
        f"takes less than {format_energy(found.solution.bound_j)})."
    )
    return f"Stopped by the time limit: t{words}" if found.solution.timed_out else f"T{words}"


def _list_rows(found: Plan, machine: Machine, run: MachineRun) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for slot in run.slots:
        mean, *ends = map(format_energy, found.job_j(slot))
        share = found.charge_share(machine, run, slot.end_s)
        rows.append(
            (
                machine.name,
                slot.task,
                _say_time(slot.start_s),
                _say_time(slot.end_s),
                mean,
                join_ends(*ends),
                "mains" if share is None else format_share(share),
            )
        )
    return rows


def _say_time(at_s: float) -> str:
    return "now" if at_s < 1 else format_duration(at_s)


def _say_left_out(one: LeftOut) -> str:
    if not one.reasons:
        return f"{one.job} cannot run: no device may run it."
    said = [_say_reason(reason) for reason in one.reasons[:_MOST_REASONS]]
    more = len(one.reasons) - _MOST_REASONS
    tail = f"; and {more} device{'s' if more > 1 else ''} more" if more > 0 else ""
    company = "" if one.alone else " beside the others"
    return f"{one.job} cannot run{company}: {'; '.join(said)}{tail}."


def _say_reason(reason: Reason) -> str:
    if reason.missing == float("inf"):
        return f"{reason.kind} of {reason.device}"
    words = {
        "battery": f"the battery of {reason.device} lacks {format_energy(reason.missing)}",
        "deadline": f"on {reason.device} it would be {format_duration(reason.missing)} late",
        "memory": f"the memory of {reason.device} lacks {format_bytes(reason.missing)}",
    }
    return words[reason.kind] + ("" if reason.alone else ", as planned")


def _list_notes(found: Plan) -> list[str]:
    runs = found.list_runs()
    notes = [f"Times count from now, {found.now:%Y-%m-%d %H:%M}."]
    if found.idle_j > _MUCH_IDLE * found.expected_j:
        notes.append(f"{format_energy(found.idle_j)} of it flow between jobs, while devices wait.")
    if found.shared_j:
        notes.append(
            f"Jobs at once share the idle power of their device: {format_energy(found.shared_j)} "
            "less than the sum of the jobs."
        )
    if asleep := _list_asleep(runs):
        notes.append(
            f"Before its first job a device is asleep and draws asleep_w: {', '.join(asleep)}."
        )
    notes += _say_unseen(found)
    return [*notes, _say_basis(found), _NOT_MODELLED]


def _say_basis(found: Plan) -> str:
    """What it rests on; powers that the file states are no meter's."""
    metered = ""
    if found.covers:
        metered = (
            f" The meters cover {', '.join(found.covers)}: what else draws power is not in it, "
            "unless rest_w says it."
        )
    if not found.stated:
        return f"Basis: {say_basis(found.basis)}.{metered}"
    words = "modelled, not measured: FLOPs / flops_per_s at a stated power_w"
    if found.basis != "modelled":
        words = f"{say_basis(found.basis)}; {words}"
    return f"Basis: {words} ({', '.join(found.stated)}).{metered}"


def _list_asleep(runs: list[tuple[Machine, MachineRun]]) -> list[str]:
    waits = [(machine, run.slots[0].start_s) for machine, run in runs if machine.battery]
    return [
        f"{machine.name} {format_power(machine.asleep_w)} for {format_duration(start_s)}"
        for machine, start_s in waits
        if start_s >= 1
    ]


def _say_unseen(found: Plan) -> list[str]:
    slots: Mapping[str, str] = {slot.task: slot.machine for slot in found.solution.slots}
    guessed = [
        f"{job} on {device}"
        for job, device in slots.items()
        if found.costs[job][device].unseen_share > _MUCH_UNSEEN
    ]
    if not guessed:
        return []
    return [
        f"Partly a guess, since such layers were never profiled there: {', '.join(guessed)}; "
        "`joulecast profile NET --missing` on the device learns them."
    ]
