"""The progress bar of a campaign: points, uncertainty, time left, and what is measured now.

It stands on stderr, and only where that is a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from joulecast.campaign import Progress
from joulecast.cli.show import make_console
from joulecast.units import format_duration, format_share

_WHY_SIZE = 44
_MINUTE = 59.5


def guess_left(now: Progress, first: Progress, points: int | None) -> float | None:
    """Seconds until the budget is spent, whichever of the two is spent first."""
    made = now.points - first.points
    left = [] if now.left_s is None else [now.left_s]
    if points is not None and made > 0:
        left.append(max(0, points - now.points) * now.elapsed_s / made)
    return min(left, default=None)


def share_done(now: Progress, first: Progress, points: int | None) -> float | None:
    """How far a campaign is, by time; None while nobody can tell."""
    left_s = guess_left(now, first, points)
    if left_s is None:
        return None
    whole_s = now.elapsed_s + left_s
    return now.elapsed_s / whole_s if whole_s else 0.0


@contextmanager
def show_progress(points: int | None) -> Iterator[Callable[[Progress], None]]:
    """Gives what a campaign is to tell its progress to."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: None
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    words = ("{task.fields[points]}", "{task.fields[unsure]}", "{task.fields[left]}")
    texts = [TextColumn(word) for word in (*words, "{task.fields[why]}")]
    seen: list[Progress] = []
    with Bar(BarColumn(24), *texts, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, points="", unsure="", left="", why="getting ready")

        def tell(now: Progress) -> None:
            seen.append(now)
            share = share_done(now, seen[0], points)
            bar.update(task, total=None if share is None else 1.0, completed=share or 0.0)
            bar.update(task, **say_progress(now, seen[0], points))

        yield tell


def _say_left(left_s: float) -> str:
    """Whole seconds: nobody believes in tenths of what is only guessed."""
    return f"{left_s:.0f} s" if left_s < _MINUTE else format_duration(left_s)


def say_progress(now: Progress, first: Progress, points: int | None) -> dict[str, Any]:
    """A campaign's progress in words."""
    left_s = guess_left(now, first, points)
    of = f" of {points}" if points is not None else ""
    why = now.why if len(now.why) <= _WHY_SIZE else now.why[: _WHY_SIZE - 1] + "…"
    return {
        "points": f"{now.points}{of} points",
        "unsure": f"± {format_share(now.uncertainty_share)}",
        "left": "" if left_s is None else f"{_say_left(left_s)} left",
        "why": why,
    }
