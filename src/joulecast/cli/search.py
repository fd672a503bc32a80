"""``joulecast search FAMILY``: nets that are good and keep an energy budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from joulecast.api.nets import build_module, find_training
from joulecast.api.profiles import resolve_profile
from joulecast.cli import options
from joulecast.cli.show import make_console, print_json
from joulecast.cli.show_search import print_search, print_survey
from joulecast.errors import FileError, InputError
from joulecast.families import FAMILIES, is_family
from joulecast.uses.search import (
    Dimension,
    Screen,
    Search,
    Survey,
    check_reachable,
    make_space,
    open_screen,
    parse_budget,
    parse_dimension,
    survey,
)


def read_dimensions(ctx: Any, param: Any, value: Any) -> dict[str, Dimension]:
    """Of a callback of click: ``c1=8..64`` ... → dimensions by name."""
    try:
        return dict(parse_dimension(str(text)) for text in value)
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.command()
@click.argument("net", metavar="FAMILY")
@options.net_options
@click.option("--budget", required=True, metavar="0.5Wh|5J|50%", help="Of a run, or of a step.")
@click.option(
    "--confidence",
    default="50%",
    show_default=True,
    callback=options.read_share,
    help="How probable it shall be that the budget is kept.",
)
@click.option("--device", default="", help="Whose profile answers.  [default: this machine's]")
@options.estimator
@click.option("--steps", type=click.IntRange(1), help="Steps of a run.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over --samples.")
@click.option("--samples", type=click.IntRange(1), help="Samples of an epoch.")
@click.option(
    "--vary",
    multiple=True,
    callback=read_dimensions,
    metavar="NAME=VALUES",
    help="c1=8..64/8, batch=16,32, precision=fp32,bf16, lr=1e-4..1e-1/log; one value fixes it.  "
    "[default: every width and depth from 1 to FAMILY's]",
)
@click.option("--train", metavar="FILE.PY:NAME", help="Your function: net, trial → score.")
@click.option("--trials", type=click.IntRange(1), default=50, show_default=True, help="To train.")
@click.option("--sampler", default="nsga2", show_default=True, help="nsga2, tpe, random, gp ...")
@click.option(
    "--objective",
    type=click.Choice(("pareto", "score")),
    default="pareto",
    show_default=True,
    help="Score against joules, or the score alone.",
)
@click.option("--storage", metavar="URL", help="Optuna's, like sqlite:///search.db.")
@click.option("--study", default="", metavar="NAME", help="The study's name in the storage.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--candidates",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Without --train: random nets to screen.",
)
@click.option("--html", metavar="FILE", help="Also write the front as a picture.")
@click.option("--svg", metavar="FILE", help="The same for papers; needs matplotlib.")
@click.option("--out", metavar="FILE", help="Also write the result as JSON.")
@options.store
@options.json
def search(
    asked: options.Asked,
    budget: str,
    confidence: float,
    device: str,
    estimator: str,
    steps: int | None,
    epochs: int | None,
    samples: int | None,
    vary: dict[str, Dimension],
    train: str | None,
    candidates: int,
    seed: int,
    html: str | None,
    svg: str | None,
    out: str | None,
    store: str | None,
    json: bool,
    **drive: Any,
) -> None:
    """Search nets of FAMILY that are good and keep an energy budget.

    Candidates that would cost too much are ruled out by the estimate, before a step is trained. The
    others are trained by your own function, which is run here: it gets the net (a PyTorch module)
    and Optuna's trial, and returns a score; more is better. Without --train it only says which
    nets keep the budget.
    """
    length = options.read_length(steps, epochs, samples)
    known = resolve_profile(device, store, lambda words: click.echo(words, err=True))
    family, setup = _need_family(asked.net), asked.resolve()[1]
    space = make_space(family, setup, vary, asked.input_shape, trains=train is not None)
    limit = parse_budget(budget, length)
    screen = open_screen(known, space, limit, length, confidence=confidence, estimator=estimator)
    found: Survey | Search
    if train is None:
        _refuse_pictures(html, svg)
        _refuse_idle("trials", "sampler", "objective", "storage", "study")
        check_reachable(screen, seed)
        found = survey(screen, candidates, seed)
    else:
        found = _drive(screen, find_training(train), seed, **drive)
        _draw(found, html, svg)
    if out:
        _write(out, found.to_dict())
    if json:
        print_json(found.to_dict())
    elif isinstance(found, Survey):
        print_survey(found)
    else:
        print_search(found, drive["storage"])


def _need_family(name: str) -> str:
    if not is_family(name):
        raise InputError(f"{name!r} is no family to search in: give one of {', '.join(FAMILIES)}")
    return name


def _refuse_pictures(html: str | None, svg: str | None) -> None:
    if html or svg:
        raise click.UsageError("a picture shows scores: give --train", click.get_current_context())


def _refuse_idle(*names: str) -> None:
    """Options of training that somebody typed, where nothing is trained."""
    context = click.get_current_context()
    typed = [
        name
        for name in names
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if typed:
        raise click.UsageError(f"--{typed[0]} is for training: give --train, or leave it out")


def _drive(
    screen: Screen,
    score: Callable[..., Any],
    seed: int,
    trials: int,
    sampler: str,
    objective: str,
    storage: str | None,
    study: str,
) -> Search:
    from joulecast.uses.search.study import hush
    from joulecast.uses.search.study import search as run_search

    hush()
    with show_trials(trials) as tell:
        return run_search(
            screen,
            score,
            trials=trials,
            sampler=sampler,
            objective=objective,
            storage=storage,
            study_name=study,
            seed=seed,
            build=build_module,
            on_trial=lambda study, trial: tell(),
        )


def _draw(found: Search, html: str | None, svg: str | None) -> None:
    if not (html or svg):
        return
    from joulecast.figures import save_html, save_svg
    from joulecast.uses.search.pictures import draw_search

    picture = draw_search(found)
    if html:
        save_html(picture, html)
    if svg:
        save_svg(picture, svg)


def _write(path: str, data: Any) -> None:
    import json

    try:
        Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"{path} cannot be written ({reason}): give another --out") from error


@contextmanager
def show_trials(count: int) -> Iterator[Callable[[], None]]:
    """Gives what is to be called after every trial: a bar on stderr, on terminals only."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("trials"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=count)
        yield lambda: bar.advance(task)
