"""What commands show before they end: a progress bar, or that a service is ready.

The bar is on stderr, and only where that is a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from joulecast.cli.commands import print_json, print_result
from joulecast.cli.streams import write_message
from joulecast.system.printable import make_printable
from joulecast.system.units import format_duration, format_share

if TYPE_CHECKING:
    from joulecast.campaign import Progress
    from joulecast.features.progress_report import ProgressReport
    from joulecast.fleet.fleet_devices import DeviceCheck
    from joulecast.store.campaigns import StoredCampaign

_DETAIL_SIZE = 44
_MINUTE_S = 59.5

UpdateBar = Callable[[float | None, str, str], None]
Announce = Callable[[dict[str, Any], str], None]


@contextmanager
def show_bar() -> Iterator[UpdateBar]:
    """Yield a function that updates a progress bar.

    The function takes the share that is done (None while it is unknown), a text, and a detail that
    is shortened to fit.
    """
    # Slow to import, and not needed for help.
    from joulecast.views.terminal import make_console
    from joulecast.views.words import shorten

    console = make_console(sys.stderr)
    if not console.is_terminal:
        yield lambda share, text, detail: None
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    fields = ("{task.fields[text]}", "{task.fields[detail]}")
    columns = [TextColumn(field, markup=False) for field in fields]
    with RichProgress(BarColumn(20), *columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, text="", detail="preparing")

        def update(share: float | None, text: str, detail: str) -> None:
            total = None if share is None else 1.0
            # Separate, because rich ignores a total of None together with other values.
            bar.update(task, total=total, completed=share or 0.0)
            text, detail = make_printable(text), shorten(make_printable(detail), _DETAIL_SIZE)
            bar.update(task, text=text, detail=detail, refresh=True)

        yield update


@contextmanager
def show_activity(_: Mapping[str, Any], text: str) -> Iterator[None]:
    """Show what an operation of unknown duration is doing while a block runs."""
    with show_bar() as update:
        update(None, text, "")
        yield


@contextmanager
def show_report(_: Mapping[str, Any]) -> Iterator[Callable[[ProgressReport], None]]:
    """Yield the callback of an operation that reports how much of it is done."""
    with show_bar() as update:
        yield lambda now: update(now.done / now.total, format_report(now), now.detail)


@contextmanager
def show_profiling(values: Mapping[str, Any]) -> Iterator[Callable[[Progress], None]]:
    """Yield the callback of a campaign: for a net, or of a list of trials."""
    is_list, points = values.get("atlas") or values.get("anchors"), values.get("points")
    seen: list[Progress] = []
    with show_bar() as update:

        def tell(now: Progress) -> None:
            seen.append(now)
            if is_list:
                share = None if now.total is None else share_done(now, now, None)
                update(share, format_atlas(now), now.reason)
            else:
                share = share_done(now, seen[0], points)
                update(share, format_campaign(now, seen[0], points), now.reason)

        yield tell


@contextmanager
def show_fleet(_: Mapping[str, Any]) -> Iterator[Callable[[Sequence[StoredCampaign]], None]]:
    """Yield a function that shows how far campaigns are."""
    from joulecast.store.campaigns import DONE, RUNNING
    from joulecast.views.words import plural

    with show_bar() as update:

        def tell(campaigns: Sequence[StoredCampaign]) -> None:
            done = sum(one.state == DONE for one in campaigns)
            running = [one for one in campaigns if one.state == RUNNING]
            points = sum(one.points for one in campaigns)
            detail = f"{running[0].device}: {running[0].reason}" if running else ""
            text = f"{done} of {plural(len(campaigns), 'device')}  {plural(points, 'point')}"
            update(done / len(campaigns), text, detail)

        yield tell


@contextmanager
def show_ready(values: Mapping[str, Any]) -> Iterator[Announce]:
    """Yield a function that tells programs, or people, that a service is ready."""
    context = click.get_current_context()
    is_json = context.params["json"]
    if is_json and values.get("stdio"):
        raise click.UsageError("--json and --stdio both use stdout", context)
    yield lambda data, text: print_json(data) if is_json else write_message(text)


@contextmanager
def show_checks(_: Mapping[str, Any]) -> Iterator[Callable[[Sequence[DeviceCheck]], None]]:
    """Yield a function that prints what the devices of a fleet answered."""
    from joulecast.features.fleet import answer_checks

    is_json = click.get_current_context().params["json"]
    yield lambda checks: print_result(answer_checks(checks), is_json)


def format_atlas(now: Progress) -> str:
    """Return the trials that are done and the time left."""
    if now.total is None:
        return ""
    left = "" if now.left_s is None else f"  {_format_left(now.left_s)} left"
    return f"{now.points:,} of {now.total:,} trials{left}"


def format_report(now: ProgressReport) -> str:
    """Return what an operation is doing and how much of it is done."""
    if float(now.total).is_integer() and now.total > 1:
        return f"{now.done:.0f} of {now.total:.0f} {now.what}"
    return now.what


def format_campaign(now: Progress, first: Progress, points: int | None) -> str:
    """Return points, uncertainty and time left of a campaign."""
    left_s = guess_left(now, first, points)
    of = f" of {points}" if points is not None else ""
    parts = [f"{now.points}{of} points", f"± {format_share(now.uncertainty_share)}"]
    return "  ".join(parts if left_s is None else [*parts, f"{_format_left(left_s)} left"])


def guess_left(now: Progress, first: Progress, points: int | None) -> float | None:
    """Return the seconds until either limit is reached; None while that is unknown."""
    made = now.points - first.points
    left = [] if now.left_s is None else [now.left_s]
    if points is not None and made > 0:
        left.append(max(0, points - now.points) * now.elapsed_s / made)
    return min(left, default=None)


def share_done(now: Progress, first: Progress, points: int | None) -> float | None:
    """Return the share of a campaign's duration that has passed; None while it is unknown."""
    left_s = guess_left(now, first, points)
    if left_s is None:
        return None
    whole_s = now.elapsed_s + left_s
    return now.elapsed_s / whole_s if whole_s else 0.0


def _format_left(left_s: float) -> str:
    """Return whole seconds, because the time left is only a guess."""
    return f"{left_s:.0f} s" if left_s < _MINUTE_S else format_duration(left_s)
