"""A finished plan: who runs when, its energy, batteries, jobs left out, and what people see of it.

The expected energy follows the schedule in its order while jobs take what is estimated; the ends of
its interval assume that the errors of all jobs have the same sign, which is safe. A ``Plan`` holds
what its JSON holds, so a plan that was read from a file shows the same report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from joulecast.features.plan.model import GOOD_GAP_SHARE, list_starts, solve
from joulecast.features.plan.problem import (
    LEVEL,
    Assignment,
    PlanDevice,
    Problem,
    Schedule,
)
from joulecast.features.plan.replay import STRICT, replay, replay_device
from joulecast.records import weakest_provenance
from joulecast.records.codec import Record, load_partial, not_stored
from joulecast.system.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_interval,
    format_power,
    format_share,
)
from joulecast.views.report import Block, Plot, Report, Reportable, Text, make_table
from joulecast.views.words import (
    describe_provenance,
    format_level,
    format_with_interval,
    label_provenance,
    plural,
    shorten,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A job that starts this many time steps after another ends was to follow it.
_NEXT_STEPS = 1.5
_ALONE_S = 2.0
_UNITS = {"battery": "J", "deadline": "s", "memory": "bytes"}
_MAX_LEFT_OUT = 12
_MAX_REASONS = 2
# Shares above which a note is worth printing.
_MIN_UNSEEN_SHARE, _MIN_IDLE_SHARE = 0.01, 0.001
_NOT_MODELLED = (
    "Not modelled: slowdown of jobs that run at the same time, charging losses, cold or aged "
    "batteries, and moving data between devices."
)


@dataclass(frozen=True)
class PlannedJob(Record):
    """A job on its device; ``charge_share`` is the state of charge at its end, None on mains."""

    job: str
    start_s: float
    end_s: float
    energy_j: float
    interval_j: tuple[float, float]
    provenance: str
    start: str = ""
    end: str = ""
    planned_energy_j: float = 0.0
    duration_s: float = 0.0
    memory_bytes: float = 0.0
    covers: str | None = None
    unseen_share: float = 0.0
    charge_share: float | None = None


@dataclass(frozen=True)
class PlannedDevice(Record):
    """What a device does; ``charge`` has times in seconds and shares, and is None on mains."""

    device: str
    energy_j: float
    idle_j: float
    jobs: tuple[PlannedJob, ...]
    planned_energy_j: float = 0.0
    shared_idle_j: float = 0.0
    awake_w: float = 0.0
    charge: tuple[tuple[float, float], ...] | None = None
    reserve_share: float = 0.0
    charging_windows: tuple[tuple[float, float], ...] = ()
    asleep_w: float = not_stored(0.0)


@dataclass(frozen=True)
class LeftOutReason(Record):
    """What prevents a job on a device.

    Attributes:
        reason: ``battery``, ``deadline`` or ``memory``.
        missing: How much of it, in ``unit``; None if no amount would do.
        alone: Whether the job does not fit there even alone.
    """

    device: str
    reason: str
    missing: float | None
    unit: str
    alone: bool

    def __str__(self) -> str:
        if self.missing is None:
            return f"{self.reason} of {self.device}"
        missing, planned = self.missing, "" if self.alone else ", as planned"
        if self.reason == "deadline":
            return f"on {self.device} it would be {format_duration(missing)} late{planned}"
        form = format_energy if self.reason == "battery" else format_bytes
        return f"the {self.reason} of {self.device} lacks {form(missing)}{planned}"


@dataclass(frozen=True)
class LeftOut(Record):
    """A job that does not run, with a reason for each device that may run it."""

    job: str
    alone: bool = False
    reasons: tuple[LeftOutReason, ...] = ()

    def __str__(self) -> str:
        if not self.reasons:
            return f"{self.job} cannot run: no device may run it."
        more = len(self.reasons) - _MAX_REASONS
        others = f"; and {plural(more, 'more device')}" if more > 0 else ""
        company = "" if self.alone else " together with the others"
        reasons = "; ".join(map(str, self.reasons[:_MAX_REASONS]))
        return f"{self.job} cannot run{company}: {reasons}{others}."


@dataclass(frozen=True)
class Plan(Record, Reportable):
    """Which job runs when on which device.

    Attributes:
        now: When second 0 is, with its time zone.
        confidence: Probability with which each job stays below its planned energy and duration.
        idle_j: Expected energy between jobs; parallel jobs save ``shared_idle_j``.
        gap_share: How much less energy the optimum could take.
        runs_most: Whether no plan runs more, by priority.
    """

    now: str
    confidence: float
    energy_j: float
    interval_j: tuple[float, float]
    idle_j: float
    gap_share: float
    is_optimal: bool
    devices: tuple[PlannedDevice, ...]
    left_out: tuple[LeftOut, ...] = ()
    provenance: str | None = None
    covers: tuple[str, ...] = ()
    planned_energy_j: float = 0.0
    planned_lower_bound_j: float = 0.0
    shared_idle_j: float = 0.0
    timed_out: bool = False
    runs_most: bool = True
    time_step_s: float = 0.0
    device_count: int = not_stored(0)

    @property
    def jobs(self) -> tuple[tuple[PlannedDevice, PlannedJob], ...]:
        """Every job with its device."""
        return tuple((device, job) for device in self.devices for job in device.jobs)

    def report(self) -> Report:
        jobs, blocks = self.jobs, list[Block]()
        provenance = self.provenance or weakest_provenance(job.provenance for _, job in jobs)
        devices = plural(len(self.devices), "device")
        if self.device_count:
            devices = f"{len(self.devices)} of {plural(self.device_count, 'device')}"
        if jobs:
            energy = format_with_interval(self.energy_j, self.interval_j, LEVEL, provenance)
            blocks.append(Text(f"Energy: {energy}.", "lead"))
            if self.confidence > 0.5:
                blocks.append(
                    Text(
                        f"Planned with {format_energy(self.planned_energy_j)}: each job stays "
                        "below its energy and time with a probability of "
                        f"{100 * self.confidence:g} %."
                    )
                )
            end = format_duration(max(job.end_s for _, job in jobs))
            blocks.append(Text(f"Finished after {end}. {self._describe_gap()}"))
            columns = ("device", "job", ">start", ">end", ">energy", f">{format_level(LEVEL)}")
            rows = [
                (
                    device.device,
                    job.job,
                    *("now" if s < 1 else format_duration(s) for s in (job.start_s, job.end_s)),
                    format_energy(job.energy_j),
                    format_interval(job.interval_j, format_energy),
                    "mains" if job.charge_share is None else format_share(job.charge_share),
                )
                for device, job in jobs
            ]
            blocks.append(schedule := make_table((*columns, ">charge after"), rows))
        blocks += [Text(str(job), "warning") for job in self.left_out[:_MAX_LEFT_OUT]]
        if (more := len(self.left_out) - _MAX_LEFT_OUT) > 0:
            blocks.append(Text(f"{plural(more, 'more job')} cannot run: see --json"))
        if self.left_out and not self.runs_most:
            blocks.append(Text("A longer --time-limit might fit more jobs."))
        if jobs:
            title = f"Schedule{label_provenance(provenance)}"
            size = (8.0, 1.2 + 0.9 * len(self.devices))
            draw = partial(draw_timeline, devices=self.devices)
            about = "Jobs on each device over time, above the state of charge of its battery."
            blocks.append(Plot("plan", title, draw, about, schedule, size))
        notes = [*self._list_notes(provenance), _NOT_MODELLED] if jobs else [_NOT_MODELLED]
        blocks += [Text(note, "note") for note in notes]
        title = f"Plan of {plural(len(jobs), 'job')} on {devices}" if jobs else "No job can run"
        return Report(title, tuple(blocks), provenance if jobs else "", "plan")

    def _describe_gap(self) -> str:
        if self.is_optimal:
            return "The plan is optimal."
        share = format_share(self.gap_share)
        if self.gap_share <= GOOD_GAP_SHARE:
            return f"The plan is within {share} of the optimum."
        bound = format_energy(self.planned_lower_bound_j)
        text = f"the optimum could take up to {share} less (lower bound {bound})."
        return f"Stopped by the time limit: {text}" if self.timed_out else text.capitalize()

    def _list_notes(self, provenance: str) -> list[str]:
        notes = [f"Times count from {datetime.fromisoformat(self.now):%Y-%m-%d %H:%M}."]
        if self.idle_j > _MIN_IDLE_SHARE * self.energy_j:
            idle = format_energy(self.idle_j)
            notes.append(f"{idle} of the energy is idle power of devices that wait between jobs.")
        if self.shared_idle_j:
            notes.append(
                "Jobs that run at the same time share the idle power of their device, which saves "
                f"{format_energy(self.shared_idle_j)}."
            )
        waits = [
            f"{one.device} {format_power(one.asleep_w)} for {format_duration(one.jobs[0].start_s)}"
            for one in self.devices
            if one.asleep_w and one.charge is not None and one.jobs[0].start_s >= 1
        ]
        if waits:
            notes.append(f"Before its first job a device sleeps at asleep_w: {', '.join(waits)}.")
        unseen = [
            f"{job.job} on {device.device}"
            for device, job in self.jobs
            if job.unseen_share > _MIN_UNSEEN_SHARE
        ]
        if unseen:
            notes.append(
                f"Extrapolated to layers that were never measured there: {', '.join(unseen)}; run "
                "`joulecast profile NET --missing` on the device."
            )
        text = describe_provenance(provenance)
        stated = dict.fromkeys(device.device for device, job in self.jobs if not job.covers)
        if stated:
            # Powers that the file states were not metered.
            modelled = "modelled, not measured: FLOPs / flops_per_s at a stated power_w"
            text = modelled if provenance == "modelled" else f"{text}; {modelled}"
            text += f" ({', '.join(stated)})"
        if self.covers:
            text += f". The meters cover {', '.join(self.covers)}: give the power of everything "
            text += "else as rest_w"
        return [*notes, f"Provenance: {text}."]


def read_plan(data: Any, what: str = "the plan") -> Plan:
    """Return the plan that ``joulecast plan --out`` wrote; ``what`` names it in an error."""
    return load_partial(Plan, data, what)


def plan_jobs(
    problem: Problem, now: datetime, confidence: float = 0.5, limit_s: float = 60.0
) -> Plan:
    """Return the plan that runs most jobs by priority, then takes least energy, then starts first.

    Jobs have their forecasts, and ``now`` is second 0: local time without a time zone.
    ``confidence`` is the probability with which each job stays below its planned numbers.
    """
    import numpy as np

    planned = problem.at(confidence, is_bound=True)
    solution = solve(planned, limit_s)
    left_out = (explain_left_out(planned, solution.schedule, name) for name in solution.left_out)
    others = [problem.at(one) for one in (0.5, 0.5 - LEVEL / 2, 0.5 + LEVEL / 2)]
    near_s = _NEXT_STEPS * solution.time_step_s
    replays = [replay(one, follow_schedule(one, solution.schedule, near_s)) for one in others]
    expected, totals_j = replays[0].runs, [one.energy_j for one in replays]
    used = [problem.job[one.job].forecasts[one.device] for one in solution.schedule]

    def tell_time(at_s: float) -> str:
        if now.tzinfo is not None:
            return (now + timedelta(seconds=at_s)).isoformat()
        return (now.astimezone() + timedelta(seconds=at_s)).astimezone().isoformat()

    devices = []
    for device in problem.devices:
        run, mean, jobs = solution.replay.runs[device.name], expected[device.name], []
        full_j = device.battery.capacity_j if device.battery else math.inf
        charge = tuple((point.at_s, point.charge_j / full_j) for point in run.charge) or None
        for one in run.assignments:
            found = problem.job[one.job].forecasts[one.device]
            planned_j, mean_j, low_j, high_j = (
                each.job[one.job].costs[one.device].energy_j(device) for each in (planned, *others)
            )
            share = float(np.interp(one.end_s, *np.transpose(charge))) if charge else None
            job = PlannedJob(
                one.job, one.start_s, one.end_s, mean_j, (low_j, high_j), found.provenance,
                tell_time(one.start_s), tell_time(one.end_s), planned_j, found.run.duration_s,
                found.memory_bytes, found.covers or None, found.unseen_share, share,
            )  # fmt: skip
            jobs.append(job)
        reserve_share = device.battery.reserve_j / full_j if device.battery else 0.0
        windows = tuple((window.start_s, window.end_s) for window in device.windows)
        about = PlannedDevice(
            device.name, mean.energy_j, mean.idle_j, tuple(jobs), run.energy_j, mean.shared_j,
            device.awake_w, charge, reserve_share, windows, device.asleep_w,
        )  # fmt: skip
        devices += [about] if jobs else []
    return Plan(
        tell_time(0.0), confidence, totals_j[0], (min(totals_j), max(totals_j)),
        sum(run.idle_j for run in expected.values()), solution.gap_share, solution.is_optimal,
        tuple(devices), tuple(left_out),
        weakest_provenance(one.provenance for one in used) if used else None,
        tuple(sorted({one.covers for one in used} - {""})),
        solution.energy_j, solution.lower_bound_j, sum(run.shared_j for run in expected.values()),
        solution.timed_out, solution.runs_most, solution.time_step_s, len(problem.devices),
    )  # fmt: skip


def follow_schedule(problem: Problem, schedule: Schedule, near_s: float) -> Schedule:
    """Return a schedule with the durations of another problem, in the same order.

    A job that was to start within ``near_s`` of another's end follows it, but not before its
    release; the others start at their time, or as soon after it as there is room.
    """
    ordered = sorted(schedule, key=lambda one: (one.start_s, one.end_s))
    done: dict[str, Assignment] = {}
    for one in ordered:
        device = problem.device[one.device]
        before = [o for o in ordered if o.device == one.device and o.job in done]
        followed = [done[o.job].end_s for o in before if abs(o.end_s - one.start_s) <= near_s]
        wish_s = max(min(followed, default=one.start_s), problem.job[one.job].release_s)
        begun = [done[o.job] for o in before]
        for at_s in sorted({wish_s, *(o.end_s for o in begun if o.end_s > wish_s)}):
            running = [o for o in begun if o.end_s > at_s]
            costs = (problem.job[o.job].costs[device.name] for o in (*running, one))
            fits = sum(cost.memory_bytes for cost in costs) <= device.memory_bytes
            if fits and len(running) < device.max_parallel:
                done[one.job] = problem.assign(one.job, one.device, at_s)
                break
    return tuple(done.values())


def explain_left_out(problem: Problem, schedule: Schedule, name: str) -> LeftOut:
    """Explain why a job is left out of a schedule; the device that lacks least comes first.

    On each device the job is tried at the start times that matter, alone and then beside the
    others as planned. The smallest amount that is missing is reported; a little less might do. One
    violated kind is better than several; where only several together would do, the largest counts.
    """
    job, found = problem.job[name], []

    def list_missing(device: PlanDevice, others: Sequence[Assignment]) -> list[dict[str, float]]:
        """Return by kind what is missing at each start time."""
        rows: list[dict[str, float]] = []
        for one in list_starts(problem, device, others, job):
            rows.append({})
            for v in replay_device(problem, device, [*others, one], STRICT).violations:
                rows[-1][v.kind] = max(v.missing, rows[-1].get(v.kind, 0.0))
        return rows

    for where, cost in job.costs.items():
        device = problem.device[where]
        rows = list_missing(device, [])
        # Between the usual times CP-SAT decides.
        fits = not all(rows) or (
            device.windows and solve(problem.restrict({where}, {name}), _ALONE_S).schedule
        )
        if fits:
            rows = list_missing(device, [one for one in schedule if one.device == where])
        sizes = cost.energy_j(device), cost.duration_s, cost.memory_bytes
        needs = dict(zip(_UNITS, sizes, strict=True))
        obstacles = [
            (len(row), max((row[kind] / (needs[kind] or 1.0), row[kind], kind) for kind in row))
            for row in rows
            if row and row.keys() <= needs.keys()
        ]
        least = min(obstacles)[1] if obstacles else (math.inf, math.inf, "deadline")
        found.append((not fits, *least, where))
    reasons = tuple(
        LeftOutReason(where, kind, missing if math.isfinite(missing) else None, _UNITS[kind], alone)
        for alone, _, missing, kind, where in sorted(found)
    )
    return LeftOut(name, all(reason.alone for reason in reasons), reasons)


def draw_timeline(figure: Figure, devices: Sequence[PlannedDevice]) -> None:
    """Draw a row per device: its jobs above, concurrent ones below each other; its charge below."""
    from joulecast.views.style import BLUE, GREEN, RED, SKY

    axes, labels = figure.subplots(), []
    last_s = max(job.end_s for device in devices for job in device.jobs)
    units = (("s", 1.0, 180.0), ("min", 60.0, 180.0), ("h", 3600.0, 96.0), ("d", 86400.0, math.inf))
    unit, unit_s = next((name, size) for name, size, most in units if last_s < most * size)
    for row, device in enumerate(devices):
        ends_s: list[float] = []
        lanes = []
        for job in device.jobs:
            free = (at for at, end_s in enumerate(ends_s) if end_s <= job.start_s)
            lane = next(free, len(ends_s))
            ends_s[lane : lane + 1] = [job.end_s]
            lanes.append(lane)
        height = 0.4 / len(ends_s)
        for lane, job in zip(lanes, device.jobs, strict=True):
            left, width = job.start_s / unit_s, (job.end_s - job.start_s) / unit_s
            middle = row - 0.42 + (lane + 0.5) * height
            axes.barh(middle, width, 0.94 * height, left, color=BLUE)
            # About so many letters fit into the bar.
            letters = int(80 * (job.end_s - job.start_s) / last_s)
            if letters > 2 and len(ends_s) <= 2:
                style: Any = {"ha": "center", "va": "center", "color": "white", "fontsize": 8}
                axes.text(left + width / 2, middle, shorten(job.job, letters), **style)
        if device.charge is None:
            labels.append(f"{device.device}\nmains")
            continue
        labels.append(
            f"{device.device}\n{100 * device.charge[0][1]:.0f} → {100 * device.charge[-1][1]:.0f} %"
        )
        empty = row + 0.42
        times = [at_s / unit_s for at_s, _ in device.charge]
        levels = [empty - 0.36 * share for _, share in device.charge]
        for start_s, end_s in device.charging_windows:
            if start_s < device.charge[-1][0]:
                span = start_s / unit_s, min(end_s / unit_s, times[-1])
                axes.fill_between(span, empty, empty - 0.36, color=SKY, alpha=0.3, linewidth=0)
        axes.fill_between(times, empty, levels, color=GREEN, alpha=0.2, linewidth=0)
        axes.plot(times, levels, color=GREEN)
        if device.reserve_share:
            level = empty - 0.36 * device.reserve_share
            axes.plot([0.0, times[-1]], [level, level], color=RED, linestyle="--")
    axes.set_yticks(range(len(devices)), labels)
    axes.set_ylim(len(devices) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.01 * last_s / unit_s)
    axes.set_xlabel(f"Time from now ({unit}); green: charge, dashed: reserve, light blue: charging")
    axes.grid(visible=False, axis="y")
