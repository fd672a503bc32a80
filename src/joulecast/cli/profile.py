"""``joulecast profile NET``: learn what layers like those of a net cost on a device."""

from __future__ import annotations

from typing import Any

import click

from joulecast.api.measuring import Budget, learn_net
from joulecast.api.nets import show_shape
from joulecast.api.profiles import name_profile
from joulecast.campaign import CampaignResult
from joulecast.cli import options
from joulecast.cli.profiles import describe_profile, print_fits
from joulecast.cli.progress import show_progress
from joulecast.cli.show import make_console, mark_basis, print_json, say_basis
from joulecast.estimators import DEFAULT
from joulecast.records import Profile, Setup
from joulecast.units import format_duration, format_share

Json = dict[str, Any]


@click.command()
@click.argument("net")
@options.net_options
@options.on
@options.meter
@click.option("--points", type=click.IntRange(1), help="Stop at this many measurements.")
@click.option(
    "--seconds", type=click.FloatRange(0), help="Stop after this time.  [default: 600, or --points]"
)
@click.option(
    "--interval",
    default="5%",
    show_default=True,
    callback=options.read_share,
    help="Stop when NET, of a family also narrower ones, is known within this share.",
)
@click.option(
    "--guide",
    type=click.Choice(("target", "energy", "time")),
    default="target",
    show_default=True,
    help="What decides where to measure next: what NET gains most from, or the paper's rule.",
)
@click.option("--missing", is_flag=True, help="Measure only what was never seen of NET.")
@options.estimator
@options.rounds
@options.device
@options.store
@options.json
def profile(
    asked: options.Asked,
    on: str,
    meter: str,
    points: int | None,
    seconds: float | None,
    interval: float,
    guide: str,
    missing: bool,
    estimator: str,
    rounds: int,
    device: str,
    store: str | None,
    json: bool,
) -> None:
    """Learn what layers like those of NET cost on a device.

    Its layers and blocks are trained alone under a meter, the next one always where NET gains most
    for the time; of a family (cnn5) all narrower members are meant too. Where graphs hide the host,
    up to three whole nets are trained for a second as well: members of a family, else NET itself.
    Every measurement is kept at once: interrupted, the same command goes on where it stopped.
    """
    found, setup = asked.resolve()
    budget = Budget(points, seconds, interval, "missing" if missing else guide, estimator)
    rig = {"on": on, "meter": meter, "device_name": device, "rounds": rounds}
    with show_progress(points) as tell:
        result, learnt = learn_net(found, setup, budget, rig, store, tell)
    if json:
        print_json(describe_result(result, learnt))
    else:
        _print_result(result, learnt, suggest(asked, setup, name_profile(learnt, store), estimator))


def describe_result(result: CampaignResult, learnt: Profile) -> Json:
    """How a campaign ended, for programs."""
    data = {key: value for key, value in result.__dict__.items() if key != "profile_key"}
    return {
        **data,
        "skipped": list(result.skipped),
        "basis": learnt.provenance,
        "profile": describe_profile(learnt),
    }


def suggest(asked: options.Asked, setup: Setup, name: str, estimator: str) -> str:
    """The command to run next."""
    shape = f" --input {show_shape(asked.input_shape)}" if asked.input_shape else ""
    flags = options.list_flags(setup)
    # Another method learns from other measurements, so it has to be asked by its name.
    method = "" if estimator == DEFAULT else f" --estimator {estimator}"
    return f"joulecast estimate {asked.net} --device {name} {flags}{shape}{method}"


def _print_result(result: CampaignResult, learnt: Profile, command: str) -> None:
    console = make_console()
    basis = mark_basis(learnt.provenance)
    took = format_duration(result.elapsed_s)
    unsure = f" Unsure by {format_share(result.uncertainty_share)}."
    console.print(
        f"{learnt.device.name} knows {result.points} points{basis}; {result.new} measurements were "
        f"made now, in {took}.{unsure if result.uncertainty_share else ''}"
    )
    console.print(f"Stopped because {result.stopped}. Basis: {say_basis(learnt.provenance)}.\n")
    print_fits(console, learnt)
    for words in result.skipped:
        console.print(f"Left out: {words}")
    # Never broken into lines, so that it can be copied.
    console.print(f"Ask it now: {command}", soft_wrap=True)
