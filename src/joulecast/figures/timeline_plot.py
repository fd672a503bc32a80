"""Plot a schedule: a row per device with its jobs above and its battery charge below.

phone      ███ job a ███  █ job b █        jobs; concurrent jobs below each other
60 → 31 %  ‾‾‾\\____/‾‾‾‾‾\\______           state of charge, from 0 to 100 %
           ░░░░░░      - - - - - -         charging windows; reserve
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from joulecast.figures.marks import Band, HorizontalBars, Line, Mark
from joulecast.figures.plot import Axis, Caption, Panel, Plot, make_plot, require_data
from joulecast.units import format_duration
from joulecast.views.style import BLUE, GREEN, RED, SKY

# Where jobs lie in a row of height 1, and where the charge runs from empty to full.
_JOBS = (0.02, 0.42)
_CHARGE = (-0.42, -0.06)
# Letters that fit side by side over the whole width, and the fewest worth showing.
_WIDTH_LETTERS = 86
_MIN_LETTERS = 3
# Unit, its seconds, and up to how many units it is used.
_UNITS = (("s", 1.0, 180.0), ("min", 60.0, 180.0), ("h", 3600.0, 96.0), ("d", 86400.0, math.inf))


@dataclass(frozen=True)
class ScheduledJob:
    """A job on a device, from its start to its end."""

    name: str
    start_s: float
    end_s: float
    hover_text: str = ""


@dataclass(frozen=True)
class DeviceSchedule:
    """A row of the timeline.

    Attributes:
        charge: Times in seconds with the state of charge as a share; empty on mains power.
        reserve_share: Share of the battery that must always be left.
        charging_windows: Start and end, in seconds, of each time on the charger.
    """

    device: str
    jobs: tuple[ScheduledJob, ...]
    charge: tuple[tuple[float, float], ...] = ()
    reserve_share: float = 0.0
    charging_windows: tuple[tuple[float, float], ...] = ()


def plot_timeline(schedules: Sequence[DeviceSchedule], caption: Caption = Caption()) -> Plot:
    """Plot jobs on devices over time, and the state of charge of every battery.

    Args:
        schedules: Devices, the first in the top row.
        caption: Title and provenance.
    """
    require_data((job for schedule in schedules for job in schedule.jobs), "job")
    last_s = max(job.end_s for schedule in schedules for job in schedule.jobs)
    unit, unit_s = next((name, size) for name, size, most in _UNITS if last_s < most * size)
    marks: list[Mark] = []
    for row, schedule in enumerate(reversed(schedules)):
        marks.append(_make_jobs(schedule, float(row), last_s, unit_s))
        if schedule.charge:
            marks += _make_charge(schedule, float(row), unit_s)
    order = (Band, HorizontalBars, Line)
    marks.sort(key=lambda mark: order.index(type(mark)))
    rows = tuple(_label_row(schedule) for schedule in reversed(schedules))
    x = Axis("Time from now", unit, low=0.0, high=1.01 * last_s / unit_s)
    panel = Panel(x, Axis("", categories=rows, has_tall_rows=True), tuple(marks))
    return make_plot((panel,), caption, "Schedule")


def _make_charge(schedule: DeviceSchedule, row: float, unit_s: float) -> list[Mark]:
    marks: list[Mark] = []
    empty, full = (row + edge for edge in _CHARGE)
    height = full - empty
    last_s = schedule.charge[-1][0]
    for start_s, end_s in schedule.charging_windows:
        x = (start_s / unit_s, min(end_s, last_s) / unit_s)
        if x[0] < x[1]:
            marks.append(Band("charging", x, (empty, empty), (full, full), SKY))
    times = tuple(time_s / unit_s for time_s, _ in schedule.charge)
    levels = tuple(empty + height * share for _, share in schedule.charge)
    texts = tuple(
        f"{schedule.device}: {100 * share:.1f} % after {format_duration(time_s)}"
        for time_s, share in schedule.charge
    )
    marks.append(Band("state of charge", times, (empty,) * len(times), levels, GREEN))
    marks.append(Line("state of charge", times, levels, GREEN, hover_texts=texts))
    if schedule.reserve_share:
        reserve = (empty + height * schedule.reserve_share,) * 2
        marks.append(Line("reserve", (0.0, times[-1]), reserve, RED, is_dashed=True))
    return marks


def _make_jobs(
    schedule: DeviceSchedule, row: float, last_s: float, unit_s: float
) -> HorizontalBars:
    jobs = schedule.jobs
    lanes = _assign_lanes(jobs)
    count = 1 + max(lanes, default=0)
    height = (_JOBS[1] - _JOBS[0]) / count
    top = row + (_JOBS[1] if schedule.charge else (_JOBS[1] - _JOBS[0]) / 2)
    labels = tuple(_shorten(job.name, (job.end_s - job.start_s) / last_s) for job in jobs)
    return HorizontalBars(
        "job",
        tuple(job.start_s / unit_s for job in jobs),
        tuple(job.end_s / unit_s for job in jobs),
        tuple(top - (lane + 0.5) * height for lane in lanes),
        BLUE,
        0.94 * height,
        hover_texts=tuple(job.hover_text or job.name for job in jobs),
        labels=labels if count <= 2 else ("",) * len(labels),
    )


def _assign_lanes(jobs: Iterable[ScheduledJob]) -> list[int]:
    """Return a lane for each job, so that concurrent jobs do not overlap."""
    ends_s: list[float] = []
    lanes = []
    for job in jobs:
        lane = next((i for i, end_s in enumerate(ends_s) if end_s <= job.start_s), len(ends_s))
        ends_s[lane : lane + 1] = [job.end_s]
        lanes.append(lane)
    return lanes


def _shorten(name: str, share: float) -> str:
    """Return a name shortened to a share of the width; empty where nothing fits."""
    letters = int(share * _WIDTH_LETTERS)
    if len(name) <= letters:
        return name
    return name[: letters - 1] + "…" if letters >= _MIN_LETTERS else ""


def _label_row(schedule: DeviceSchedule) -> str:
    if not schedule.charge:
        return f"{schedule.device}\nmains"
    first, last = (100 * share for _, share in (schedule.charge[0], schedule.charge[-1]))
    return f"{schedule.device}\n{first:.0f} → {last:.0f} %"
