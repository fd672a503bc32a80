"""``joulecast evaluate NET``: how good the estimates of a family's nets are on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from joulecast.api.measuring import open_rig
from joulecast.api.profiles import resolve_profile
from joulecast.campaign import find_profile_key
from joulecast.cli import options
from joulecast.cli.show import (
    make_console,
    mark_basis,
    print_json,
    print_notes,
    print_table,
    say_basis,
)
from joulecast.errors import MissingError
from joulecast.records import Profile
from joulecast.store import open_store
from joulecast.uses.evaluate import (
    Evaluation,
    Plan,
    Score,
    Stage,
    check_family,
    judge,
    list_estimators,
)
from joulecast.uses.evaluate import (
    evaluate as run_evaluation,
)

_WHY_SIZE = 30
_READING = (
    "error: mean of |estimate - measured| / measured; in 95 %: nets inside that interval, of that "
    "width; time: error of the seconds; device: what learning took."
)
_ERRORS = (">error", ">bias", ">median", ">worst", ">≤ 10 %")
_COLUMNS = ("estimator", *_ERRORS, ">in 95 %", ">width", ">time", ">device")
_WHOLE = 99.95
_MOST_LEFT_OUT = 8


def read_names(ctx: Any, param: Any, value: Any) -> tuple[str, ...]:
    """Of a callback of click: ``additive, flops`` → names, each once; all where there are none."""
    words = [word.strip() for word in str(value or "").split(",")]
    return tuple(dict.fromkeys(filter(None, words))) or list_estimators()


@click.command()
@click.argument("net")
@options.net_options
@options.on
@options.meter
@click.option(
    "--estimators",
    callback=read_names,
    metavar="NAME,NAME",
    help="Which ones; NAME-noprobe is NAME without probes.  [default: all but flops-linear]",
)
@click.option("--nets", type=click.IntRange(1), default=20, show_default=True, help="Random nets.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Device time that each estimator may learn for.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Which random nets.")
@options.rounds
@options.device
@options.store
@click.option("--offline", is_flag=True, help="Judge what is kept; never measure.")
@click.option("--html", metavar="FILE", help="Also write pictures, as a page of their own.")
@click.option("--svg", metavar="FOLDER", help="Also write pictures for papers; needs matplotlib.")
@options.json
def evaluate(
    asked: options.Asked,
    estimators: tuple[str, ...],
    nets: int,
    seconds: float,
    seed: int,
    store: str | None,
    offline: bool,
    html: str | None,
    svg: str | None,
    json: bool,
    **rig: Any,
) -> None:
    """Say how good estimates are: random nets of a family NET, measured and estimated.

    The nets are measured before and after the estimators learn, each from measurements of its own
    and never from these nets. Everything is kept at once: interrupted, the same command goes on
    where it stopped, and with --offline a finished one is judged again without a device.
    """
    check_family(asked.net)
    setup = asked.resolve()[1]
    plan = Plan(asked.net, setup, asked.input_shape, estimators, nets, seconds, seed)
    if offline:
        result, place = _judge_kept(plan, store, **rig)
    else:
        result, place = _measure(plan, store, **rig)
    _draw(result, html, svg)
    if json:
        print_json({**result.to_dict(), "basis": result.provenance, "store": place})
    else:
        _print_result(result, place, offline)


def _draw(result: Evaluation, html: str | None, svg: str | None) -> None:
    """Pictures, where they were asked for and there is something to see."""
    if not (html or svg):
        return
    from joulecast.figures import save_html, save_svg
    from joulecast.uses.evaluate.pictures import draw_evaluation

    if not any(net.answers for net in result.nets):
        raise MissingError("no estimator could be judged, so there is nothing to draw yet")
    pictures = draw_evaluation(result)
    if html:
        save_html(list(pictures.values()), html)
    for name, picture in pictures.items() if svg else ():
        save_svg(picture, Path(svg or "") / f"{result.net}-{name}.svg")


def _measure(plan: Plan, store: str | None, device: str, **rig: Any) -> tuple[Evaluation, str]:
    with (
        open_rig(device_name=device, **rig) as opened,
        open_store(store) as kept,
        show_stages() as tell,
    ):
        return run_evaluation(opened, kept, plan, tell), kept.place


def _judge_kept(plan: Plan, store: str | None, device: str, **rig: Any) -> tuple[Evaluation, str]:
    """From the store alone; a device that is named need not be here."""
    with open_store(store, create=False) as kept:
        if device:
            return judge(resolve_profile(device, store), plan), kept.place
        # Never opened: it only says which device and meter are meant.
        idle = open_rig(**rig)
        runtime, meter = idle.runtime, idle.meter
        seen = kept.observations(find_profile_key(idle))
        profile = Profile(runtime.device, runtime.name, meter.covers, meter.provenance, seen)
        return judge(profile, plan), kept.place


# ---------------------------------------------------------------------------------------------
# For people


@contextmanager
def show_stages() -> Iterator[Callable[[Stage], None]]:
    """Gives what an evaluation is to tell its stages to: a bar on stderr, on terminals only."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield lambda stage: None
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    texts = [TextColumn("{task.fields[" + name + "]}") for name in ("stage", "why")]
    with Bar(BarColumn(16), *texts, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0, stage="getting ready", why="")
        yield lambda now: bar.update(task, completed=now.share, **say_stage(now))


def say_stage(now: Stage) -> dict[str, Any]:
    """Where an evaluation stands, in words."""
    why = now.why if len(now.why) <= _WHY_SIZE else now.why[: _WHY_SIZE - 1] + "…"
    return {"stage": f"{now.number} of {now.count}: {now.what}", "why": why}


def _print_result(result: Evaluation, place: str, offline: bool) -> None:
    console = make_console()
    count = f"{len(result.nets)} random net" + ("s" if len(result.nets) > 1 else "")
    console.print(
        f"{count} of {result.net} on {result.device.name}{mark_basis(result.provenance)}: "
        f"{options.say_setup(result.setup)}\n"
    )
    print_table(console, _COLUMNS, map(_show_score, result.scores))
    console.print(_say_noise(result))
    for words in result.left_out[:_MOST_LEFT_OUT]:
        console.print(f"Left out: {words}")
    if len(result.left_out) > _MOST_LEFT_OUT:
        console.print(f"Left out: {len(result.left_out) - _MOST_LEFT_OUT} more, see --json")
    if offline:
        for words in result.missing:
            console.print(f"Not measured yet: {words}")
    notes = [
        _READING,
        f"Nets by seed {result.seed}; each estimator could learn for {result.seconds:g} s.",
        f"Basis: {say_basis(result.provenance)}; the meter covers {result.covers}.",
        f"Kept in {place}; the same command with --offline judges it again without measuring.",
    ]
    print_notes(console, notes)


def _show_score(score: Score) -> tuple[str, ...]:
    return (
        score.estimator,
        _percent(score.mape_percent),
        ("+" if score.bias_percent > 0 else "") + _percent(score.bias_percent),
        _percent(score.median_percent),
        _percent(score.max_percent),
        f"{score.within10_percent:.0f} %",
        f"{score.coverage95_percent:.0f} %",
        _percent(score.width95_percent),
        _percent(score.time_mape_percent),
        f"{score.device_seconds:,.0f} s",
    )


def _percent(value: float) -> str:
    return f"{value:.1f} %" if abs(value) < _WHOLE else f"{value:,.0f} %"


def _say_noise(result: Evaluation) -> str:
    if result.noise_percent is None:
        return "Each net was measured once, so nobody knows how much of this is noise."
    return (
        f"Two measurements of the same net differ by {_percent(result.noise_percent)} (median): "
        "errors below that cannot be told apart."
    )
