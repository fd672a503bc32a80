"""Format the values of reports: intervals, dates, percentages, and tables of names and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from joulecast.reports.report import ReportTable
from joulecast.units import format_energy, format_interval

# From here on a percentage is written without decimals.
_LARGE_PERCENT = 99.95


def format_estimate(mean_j: float, interval_j: Sequence[float], level: float = 0.95) -> str:
    """Return ``2.07 J (95 % interval 1.87–2.29 J)``."""
    interval = format_interval(interval_j, format_energy)
    return f"{format_energy(mean_j)} ({100 * level:g} % interval {interval})"


def format_percent(percent: float) -> str:
    """Return a percentage with one decimal; large ones have none."""
    return f"{percent:.1f} %" if abs(percent) < _LARGE_PERCENT else f"{percent:,.0f} %"


def format_time(at_s: float) -> str:
    """Return the date and time of a moment, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def list_values(caption: str, pairs: Iterable[tuple[str, str]]) -> ReportTable:
    """Return a table of names and values, without those that are empty."""
    rows = tuple((name, value) for name, value in pairs if value)
    return ReportTable(caption, ("", "value"), rows)


def count_things(number: int, thing: str) -> str:
    """Return ``1 device``, ``1,200 devices``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
