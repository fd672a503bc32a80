"""What ``joulecast search`` says to people: the front, or what keeps a budget."""

from __future__ import annotations

from joulecast.cli import options
from joulecast.cli.show import join_ends, make_console, print_notes, print_table, say_basis
from joulecast.families import FAMILIES
from joulecast.units import format_count, format_duration, format_energy, format_share
from joulecast.uses.search import (
    Choice,
    Point,
    Screen,
    Search,
    Survey,
    Verdict,
    count_work,
    hide_password,
)

_MOST_ROWS = 15
_COSTS = (">energy", ">95 % interval", ">time")
_NOT_INCLUDED = "Not included in joules: loading data, evaluation and checkpoints."


def print_search(found: Search, storage: str | None) -> None:
    """Print the front, and what it rests on."""
    console, screen = make_console(), found.screen
    console.print(_say_head(screen, "Search in"))
    console.print(
        f"{len(found.points)} trials trained by {found.sampler}; the estimate ruled out "
        f"{found.ruled_out:,} of {found.screened:,} candidates before training.\n"
    )
    front = found.front
    if front:
        columns = ("net", "with", ">score", *_COSTS, ">keeps it", ">on front")
        rows = [_show_point(point, screen) for point in front[:_MOST_ROWS]]
        print_table(console, columns, rows, title=_say_of(screen, "The front, the cheapest first"))
    if len(front) > _MOST_ROWS:
        console.print(f"and {len(front) - _MOST_ROWS} more on the front: see --json")
    print_notes(console, _list_notes(found, storage))


def _show_point(point: Point, screen: Screen) -> tuple[str, ...]:
    verdict = point.verdict
    return (
        verdict.network.name,
        _say_more(verdict, screen),
        f"{point.score:.4g}",
        *_show_cost(verdict),
        format_share(verdict.chance),
        format_share(point.front_chance),
    )


def _show_cost(verdict: Verdict) -> tuple[str, str, str]:
    ends = join_ends(*map(format_energy, verdict.interval_j))
    about = "about " if verdict.estimate.unseen_share > 0 else ""
    return (
        about + format_energy(verdict.energy_j),
        ends,
        format_duration(verdict.duration_s),
    )


def _say_more(verdict: Verdict, screen: Screen) -> str:
    """What varies and a net's name does not say: ``batch 16, bf16, lr 0.0016``."""
    words = []
    for name in _list_more(screen):
        value = verdict.params[name]
        shown = f"{value:.2g}" if isinstance(value, float) else str(value)
        words.append(shown if isinstance(value, str) else f"{name} {shown}")
    return ", ".join(words) or "-"


def _list_more(screen: Screen) -> list[str]:
    """Dimensions that vary and that a net's name does not say."""
    family = FAMILIES[screen.space.family.partition(":")[0]].params
    return [
        name
        for name, dimension in screen.space.dimensions.items()
        if name not in family and not (isinstance(dimension, Choice) and len(dimension.values) == 1)
    ]


def print_survey(found: Survey) -> None:
    """Print which nets keep the budget; how good they are nobody knows."""
    console = make_console()
    screen, fitting = found.screen, found.fitting
    share = format_share(len(fitting) / len(found.verdicts))
    console.print(_say_head(screen, "Screening"))
    console.print(
        f"{len(fitting):,} of {len(found.verdicts):,} random candidates keep it ({share}), "
        f"{len(found.verdicts) / found.seconds:,.0f} screened a second.\n"
    )
    if fitting:
        columns = ("net", "with", ">parameters", *_COSTS, ">keeps it")
        rows = [_show_candidate(verdict, screen) for verdict in fitting[:_MOST_ROWS]]
        print_table(console, columns, rows, title=_say_of(screen, "The largest of them"))
    notes = [
        "How good they are is not known: parameters are size, not quality; --train FILE.PY:NAME "
        "trains nets that keep the budget and finds the front.",
    ]
    print_notes(console, notes + _say_ground(screen, found.verdicts))


def _show_candidate(verdict: Verdict, screen: Screen) -> tuple[str, ...]:
    return (
        verdict.network.name,
        _say_more(verdict, screen),
        format_count(count_work(verdict)[0]),
        *_show_cost(verdict),
        format_share(verdict.chance),
    )


def _say_head(screen: Screen, verb: str) -> str:
    setup = options.say_setup(screen.space.setup)
    limit = "" if screen.budget.share is None else f" (about {format_energy(screen.limit_j)})"
    return (
        f"{verb} {screen.space.family} on {screen.opened.profile.device.name}: {setup}; budget "
        f"{screen.budget}{limit}, kept with at least {format_share(screen.confidence)}"
    )


def _say_of(screen: Screen, words: str) -> str:
    of = "of a run" if screen.length.is_run else "of a step"
    return f"{words}; energy and time {of}"


def _list_notes(found: Search, storage: str | None) -> list[str]:
    notes = [
        "keeps it: chance that the budget is kept; on front: chance that no other trial is as good "
        "for fewer joules, as far as joules are in doubt.",
    ]
    if found.pruned or found.failed:
        notes.append(f"{found.pruned} trials were pruned, {found.failed} failed.")
    notes += _say_ground(found.screen, tuple(point.verdict for point in found.points))
    if storage:
        notes.append(
            f"Kept as the study {found.study!r}: the same command goes on with it. To look at it:"
        )
        notes.append(f"    optuna-dashboard {hide_password(storage)}")
    return notes


def _say_ground(screen: Screen, verdicts: tuple[Verdict, ...]) -> list[str]:
    """What the joules rest on."""
    covers, basis = screen.opened.profile.covers, screen.opened.basis
    ground = f"Joules are estimates. Basis: {say_basis(basis)}; the meter covers {covers}."
    notes = [f"{ground} {_NOT_INCLUDED}"]
    if "batch" in _list_more(screen) and screen.length.epochs is None:
        notes.append(
            "A step of a smaller batch does less: with --epochs and --samples, batches are "
            "compared by what a whole run takes."
        )
    guessed = sum(verdict.estimate.unseen_share > 0 for verdict in verdicts)
    if guessed:
        notes.append(
            f"{guessed:,} of {len(verdicts):,} hold layers that were never profiled here, or a "
            "setup that was not (about): profile them before you trust their joules."
        )
    return notes
