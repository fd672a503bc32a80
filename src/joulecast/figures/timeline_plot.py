"""What runs when: a lane for each device, its jobs above and what its battery holds below.

phone      ███ job a ███  █ job b █        jobs, those at once below each other
60 → 31 %  ‾‾‾\\____/‾‾‾‾‾\\______           state of charge, 0 to 100 %, between two faint lines
           ░░░░░░      - - - - - -         when it is charged; its reserve
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from joulecast.figures.marks import Band, Line, Mark, Spans
from joulecast.figures.picture import Axis, Panel, Picture, need_some
from joulecast.figures.style import BLUE, GREEN, RED, SKY
from joulecast.units import format_duration

# Of a lane of height 1: where jobs lie, and where charge goes from empty to full.
_JOBS = (0.02, 0.42)
_CHARGE = (-0.42, -0.06)
# Letters that fit side by side over the whole width; shorter than this is no name.
_LETTERS = 86
_LEAST_LETTERS = 3
_UNITS = (("s", 1.0, 180.0), ("min", 60.0, 180.0), ("h", 3600.0, 96.0), ("d", 86400.0, math.inf))


@dataclass(frozen=True)
class Stay:
    """A job on its device; ``note`` is what hovering over it says."""

    job: str
    start_s: float
    end_s: float
    note: str = ""


@dataclass(frozen=True)
class Lane:
    """A device.

    Attributes:
        charge: Moments and shares of a full battery at them; empty on the mains.
        reserve_share: What must always be left.
        windows: When it is charged, from and to.
    """

    device: str
    stays: tuple[Stay, ...]
    charge: tuple[tuple[float, float], ...] = ()
    reserve_share: float = 0.0
    windows: tuple[tuple[float, float], ...] = ()


def draw_timeline(
    lanes: Sequence[Lane],
    *,
    title: str = "What runs when",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """Jobs on devices over time, and the state of charge of every battery.

    Args:
        lanes: Devices, the first on top.
        title: What is shown.
        about: A smaller line under it.
        provenance: What the numbers rest on.
    """
    need_some((stay for lane in lanes for stay in lane.stays), "the jobs")
    last_s = max(stay.end_s for lane in lanes for stay in lane.stays)
    unit, scale_s = next(
        (name, size) for name, size, most in _UNITS if last_s < most * size or not most
    )
    marks: list[Mark] = []
    for place, lane in enumerate(reversed(lanes)):
        marks += _draw_lane(lane, float(place), last_s, scale_s)
    order = (Band, Spans, Line)
    marks.sort(key=lambda mark: order.index(type(mark)))
    labels = tuple(_label(lane) for lane in reversed(lanes))
    x = Axis("time from now", unit, low=0.0, high=1.01 * last_s / scale_s)
    panel = Panel(x, Axis("", labels=labels, roomy=True), tuple(marks))
    return Picture(title, (panel,), about, provenance)


def _draw_lane(lane: Lane, place: float, last_s: float, scale_s: float) -> list[Mark]:
    marks: list[Mark] = [_draw_jobs(lane, place, last_s, scale_s)]
    if not lane.charge:
        return marks
    empty, full = (place + edge for edge in _CHARGE)
    tall = full - empty
    over_s = lane.charge[-1][0]
    for begin_s, end_s in lane.windows:
        x = (begin_s / scale_s, min(end_s, over_s) / scale_s)
        if x[0] < x[1]:
            marks.append(Band("charger", x, (empty, empty), (full, full), SKY))
    times = tuple(at_s / scale_s for at_s, _ in lane.charge)
    levels = tuple(empty + tall * share for _, share in lane.charge)
    notes = tuple(
        f"{lane.device}: {100 * share:.1f} % after {format_duration(at_s)}"
        for at_s, share in lane.charge
    )
    marks.append(Band("charge", times, (empty,) * len(times), levels, GREEN))
    marks.append(Line("charge", times, levels, GREEN, notes=notes))
    reserve = (empty + tall * lane.reserve_share,) * 2
    if lane.reserve_share:
        marks.append(Line("reserve", (0.0, times[-1]), reserve, RED, dashed=True))
    return marks


def _draw_jobs(lane: Lane, place: float, last_s: float, scale_s: float) -> Spans:
    rows = _stack(lane.stays)
    count = 1 + max(rows, default=0)
    tall = (_JOBS[1] - _JOBS[0]) / count
    top = place + (_JOBS[1] if lane.charge else (_JOBS[1] - _JOBS[0]) / 2)
    heights = tuple(top - (row + 0.5) * tall for row in rows)
    texts = tuple(_fit(stay.job, (stay.end_s - stay.start_s) / last_s) for stay in lane.stays)
    return Spans(
        "job",
        tuple(stay.start_s / scale_s for stay in lane.stays),
        tuple(stay.end_s / scale_s for stay in lane.stays),
        heights,
        BLUE,
        0.94 * tall,
        notes=tuple(stay.note or stay.job for stay in lane.stays),
        texts=texts if count <= 2 else ("",) * len(texts),
    )


def _stack(stays: Iterable[Stay]) -> list[int]:
    """A row for each job, so that jobs at once lie below each other."""
    free_s: list[float] = []
    rows = []
    for stay in stays:
        row = next((at for at, end_s in enumerate(free_s) if end_s <= stay.start_s), len(free_s))
        free_s[row : row + 1] = [stay.end_s]
        rows.append(row)
    return rows


def _fit(words: str, share: float) -> str:
    """A name cut to what fits into a share of the width."""
    room = int(share * _LETTERS)
    if len(words) <= room:
        return words
    return words[: room - 1] + "…" if room >= _LEAST_LETTERS else ""


def _label(lane: Lane) -> str:
    if not lane.charge:
        return f"{lane.device}\nmains"
    first, last = (100 * share for _, share in (lane.charge[0], lane.charge[-1]))
    return f"{lane.device}\n{first:.0f} → {last:.0f} %"
