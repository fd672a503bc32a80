"""``joulecast compare NET``: where and how to train a net, ranked by joules and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import click

from joulecast.api.nets import resolve_net
from joulecast.api.profiles import resolve_profile
from joulecast.cli import options
from joulecast.cli.bill import Bill, read_bill
from joulecast.cli.show import print_json
from joulecast.cli.show_compare import describe_bill, print_comparison
from joulecast.errors import JoulecastError
from joulecast.records import OPTIMIZERS, PRECISIONS, Profile, Setup
from joulecast.uses.compare import Comparison
from joulecast.uses.compare import compare as rank_combinations

_MANY = 1_000_000


def read_words(ctx: Any, param: Any, value: Any) -> tuple[str, ...]:
    """Of a callback of click: ``a, b`` → words, each once; settings may give a list."""
    if value is None:
        return ()
    parts = value if isinstance(value, (list, tuple)) else str(value).split(",")
    words = tuple(dict.fromkeys(filter(None, (str(part).strip() for part in parts))))
    if not words:
        raise click.BadParameter(
            f"{value!r} says none: give at least one, or leave it out", ctx, param
        )
    return words


def read_batches(ctx: Any, param: Any, value: Any) -> tuple[int, ...]:
    """Of a callback of click: ``8,16`` → numbers."""
    words = read_words(ctx, param, value)
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise click.BadParameter(
            f"{', '.join(words)}: give whole numbers from 1 on, like 8,16", ctx, param
        )
    return tuple(map(int, words))


def _choose_from(known: Sequence[str]) -> Any:
    """A callback of click for words that are known."""

    def read(ctx: Any, param: Any, value: Any) -> tuple[str, ...]:
        words = read_words(ctx, param, value)
        for word in words:
            if word not in known:
                raise click.BadParameter(f"{word!r}: choose of {', '.join(known)}", ctx, param)
        return words

    return read


@click.command()
@click.argument("net")
@click.option(
    "--devices",
    callback=read_words,
    metavar="NAME,NAME",
    help="Whose profiles answer; see `joulecast profiles list`.  [default: this machine's]",
)
@click.option(
    "--batch",
    type=click.UNPROCESSED,
    callback=read_batches,
    metavar="8,16,32",
    help="Samples of a step.  [default: the net's own]",
)
@click.option(
    "--precision",
    type=click.UNPROCESSED,
    callback=_choose_from(PRECISIONS),
    default="fp32",
    show_default=True,
    metavar="fp32,bf16",
    help=f"Of {', '.join(PRECISIONS)}.",
)
@click.option(
    "--optimizer",
    type=click.UNPROCESSED,
    callback=_choose_from(OPTIMIZERS),
    default="sgd",
    show_default=True,
    metavar="sgd,adamw",
    help=f"Of {', '.join(OPTIMIZERS)}.",
)
@options.input_shape
@options.loss
@options.threads
@options.inference
@options.estimator
@click.option(
    "--level",
    default="95%",
    show_default=True,
    callback=options.read_share,
    help="How probable the intervals shall be.",
)
@click.option("--epochs", type=click.IntRange(1), help="Also for so many passes over --samples.")
@click.option("--samples", type=click.IntRange(1), help="Also say what so many samples take.")
@click.option("--grid", metavar="400|de", help="Also say CO2e: grams a kWh, or a region.")
@click.option("--price", metavar="0.30EUR", help="Also say what it costs: money a kWh.")
@click.option("--html", metavar="FILE", help="Also write joules against seconds as a picture.")
@click.option("--svg", metavar="FILE", help="The same for papers; needs matplotlib.")
@options.store
@options.json
def compare(
    net: str,
    devices: tuple[str, ...],
    batch: tuple[int, ...],
    precision: tuple[str, ...],
    optimizer: tuple[str, ...],
    input: tuple[int, ...] | None,
    loss: str,
    threads: int,
    inference: bool,
    estimator: str,
    level: float,
    epochs: int | None,
    samples: int | None,
    grid: str | None,
    price: str | None,
    html: str | None,
    svg: str | None,
    store: str | None,
    json: bool,
) -> None:
    """Rank devices, batches, precisions and optimizers by the joules of a sample of NET.

    Every combination is estimated, none is run. Those that no other one beats in both joules and
    seconds are on the front. Combinations that cannot be compared are listed with the reason.
    """
    # Money and grams are read first: a wrong one is not to be found after all the asking.
    bill = read_samples(epochs, samples, grid, price)
    found_net = resolve_net(net, None, input)
    phase = "inference" if inference else "train"
    setups = [
        Setup(size, phase, kind, method, loss, threads)
        for size, kind, method in product(batch or (found_net.batch,), precision, optimizer)
    ]
    profiles = find_profiles(devices, store)
    found = rank_combinations(found_net.network, profiles, setups, estimator, level)
    _draw(found, html, svg)
    if json:
        data = found.to_dict()
        rows = zip(data["rows"], found.rows, strict=True)
        data["rows"] = [{**one, **describe_bill(row, bill)} for one, row in rows]
        print_json({**data, **({"samples": bill.count} if bill else {})})
    else:
        print_comparison(found, bill)


def find_profiles(devices: Sequence[str], store: str | None) -> dict[str, Profile | str]:
    """The profile of every device, or why there is none; nobody at all is an error."""
    found: dict[str, Profile | str] = {}
    errors: list[JoulecastError] = []
    for name in devices or ("",):
        try:
            found[name] = resolve_profile(name, store, lambda words: click.echo(words, err=True))
        except JoulecastError as error:
            errors.append(error)
            found[name] = str(error)
    if len(errors) == len(found):
        raise errors[0]
    return found


def read_samples(
    epochs: int | None, samples: int | None, grid: str | None, price: str | None
) -> Bill | None:
    """How many samples are meant, and which units; None where nobody asks for them."""
    if epochs is not None and samples is None:
        raise click.UsageError("--epochs needs --samples", click.get_current_context())
    if not any((samples, grid, price)):
        return None
    return read_bill((epochs or 1) * (samples or _MANY), grid, price)


def _draw(found: Comparison, html: str | None, svg: str | None) -> None:
    if not (html or svg):
        return
    from joulecast.figures import save_html, save_svg
    from joulecast.uses.compare.pictures import draw_comparison

    picture = draw_comparison(found)
    if html:
        save_html(picture, html)
    if svg:
        save_svg(picture, svg)
