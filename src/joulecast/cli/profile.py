"""``joulecast profile NET``: profile a device with layers like those of a net, or for any net."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from joulecast.campaign import CampaignResult
from joulecast.cli import options
from joulecast.cli.interruptions import MEASUREMENTS_KEPT, report_interruption
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import SHARE, NumberType
from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.print_anchors import print_anchors
from joulecast.cli.print_atlas import describe_disturbances, print_atlas
from joulecast.cli.progress import show_campaign
from joulecast.cli.setups import list_setup_options
from joulecast.cli.terminal import (
    Json,
    describe_provenance,
    label_provenance,
    make_console,
    plural,
    print_notes,
)
from joulecast.estimators import AUTO, choose_estimator
from joulecast.features.nets import NetRequest
from joulecast.features.options import MeasureOptions, ProfileOptions
from joulecast.features.profile import run_profiling
from joulecast.features.profiles import identify_profile
from joulecast.features.stored_profiles import describe_profile
from joulecast.records import Profile, Setup
from joulecast.units import format_duration, format_shape, format_share

# Options that say how NET is trained, or when enough is known about it.
_NET_OPTIONS = (
    "batch",
    "input",
    "optimizer",
    "precision",
    "loss",
    "threads",
    "processor",
    "cuda_graphs",
    "interval",
    "acquisition",
    "missing",
)
# Options of campaigns that choose what they measure.
_ANCHOR_OPTIONS = ("points", "seconds", "retry_refused", "from_", "estimator", "inference")
# Options of every campaign.
CAMPAIGN_LIMITS = (
    click.option("--points", type=click.IntRange(1), help="Stop after this many measurements."),
    click.option(
        "--interval",
        type=SHARE,
        default="5%",
        show_default=True,
        help="Stop when the estimate of NET (and of narrower members of its family) is within "
        "this share.",
    ),
    click.option(
        "--acquisition",
        type=click.Choice(("target", "energy", "time")),
        default="target",
        show_default=True,
        help="What to measure next: what lowers the uncertainty of NET most, or the paper's rule.",
    ),
    click.option("--missing", is_flag=True, help="Measure only layers of NET never seen before."),
)


def make_profile_options(
    interval: float, acquisition: str, missing: bool, **rest: Any
) -> ProfileOptions:
    """Return the options of a campaign from the values of options."""
    acquisition = "missing" if missing else acquisition
    return ProfileOptions(interval_share=interval, acquisition=acquisition, **rest)


@click.command()
@click.argument("net", required=False)
@options.checkpointed_net_options
@options.measuring
@collect(
    "profiling",
    make_profile_options,
    *CAMPAIGN_LIMITS,
    click.option(
        "--seconds",
        type=NumberType(0),
        help="Stop after this time.  [default: 600, with --atlas 1800, or --points]",
    ),
    click.option(
        "--anchors",
        is_flag=True,
        help="Instead of NET: seconds that narrow estimates from the data sheet of a GPU.",
    ),
    click.option("--atlas", is_flag=True, help="Instead of NET: learn the device for any network."),
    click.option(
        "--retry-refused", is_flag=True, help="With --atlas: try again what the device refused."
    ),
    options.from_,
    options.estimator,
)
@options.store
@options.output
def profile(
    request: NetRequest,
    measuring: MeasureOptions,
    profiling: ProfileOptions,
    store: str | None,
    output: OutputOptions,
) -> None:
    """Measure layers like those of NET on a device, and fit its profile.

    With --atlas there is no NET: layers and blocks of networks of all kinds are measured, from toys
    to large language models, in the order in which they tell most.

    With --anchors there is none either: large products and convolutions in each precision, a copy,
    an empty launch and steps of two small networks narrow the estimates that start from the data
    sheet of a GPU. They take seconds.

    Layers and blocks are trained in isolation under a meter, or run with --inference; the next one
    is always what lowers the uncertainty of NET most for its time. For a family (cnn5) that
    includes all narrower members. Where CUDA graphs hide the host, up to three whole nets are
    trained or run for a second as well. Every measurement is stored at once: after an interruption,
    the same command resumes.
    """
    if (profiling.atlas or profiling.anchors) and not options.is_typed("rounds"):
        # One round of each: more trials tell more than more rounds.
        measuring = replace(measuring, rounds=1)
    if profiling.anchors:
        _check_no_net("--anchors", "measures a fixed list", request, _ANCHOR_OPTIONS)
        print_anchors(measuring, store, output)
        return
    if profiling.atlas:
        _check_no_net("--atlas", "draws its own networks and setups", request, ())
        phase = request.setup_options["phase"]
        print_atlas(measuring, replace(profiling, phase=phase), store, output)
        return
    if request.net is None:
        raise click.UsageError("give a NET, or --atlas, or --anchors", click.get_current_context())
    net, setup = request.resolve()
    with report_interruption(MEASUREMENTS_KEPT), show_campaign(profiling.points) as tell:
        result, learnt = run_profiling(net, setup, measuring, profiling, store, tell)
    name = identify_profile(learnt, store)
    named = choose_estimator(profiling.estimator, learnt.runtime)
    is_usual = named == choose_estimator(AUTO, learnt.runtime)
    command = suggest_estimate(request, setup, name, "" if is_usual else named)
    if any(one.is_pending for one in learnt.observations):
        command = f"joulecast data attach TRACE.csv --device {name}"
    data = describe_result(result, learnt)
    write_result(output, data, lambda: _print_result(result, learnt, command))


def _check_no_net(flag: str, why: str, request: NetRequest, more: Sequence[str]) -> None:
    """Raise UsageError if options are given that mean nothing without a net."""
    context = click.get_current_context()
    if request.net is not None:
        raise click.UsageError(f"give NET or {flag}, not both", context)
    given = [name for name in (*_NET_OPTIONS, *more) if options.is_typed(name)]
    if given:
        option = f"--{given[0].replace('_', '-').rstrip('-')}"
        raise click.UsageError(f"{flag} {why}: leave {option} out", context)


def describe_result(result: CampaignResult, profile: Profile) -> Json:
    """Return how a campaign ended as JSON values."""
    data = {key: value for key, value in asdict(result).items() if key != "profile_key"}
    return {
        **data,
        "skipped": list(result.skipped),
        "disturbances": dict(result.disturbances),
        "provenance": profile.provenance,
        "profile": describe_profile(profile),
    }


def suggest_estimate(request: NetRequest, setup: Setup, device: str, estimator: str) -> str:
    """Return the command that estimates the net with the new profile; no estimator if empty."""
    shape = f" --input {format_shape(request.input_shape)}" if request.input_shape else ""
    flags = list_setup_options(setup) + (" --checkpoint" if request.checkpoint else "")
    # Another estimator was fitted to other measurements, so the command must name it.
    method = f" --estimator {estimator}" if estimator else ""
    return f"joulecast estimate {request.name} --device {device} {flags}{shape}{method}"


def list_skipped(reasons: Sequence[str]) -> list[str]:
    """Return one line for each reason, with how often it was given."""
    counts = Counter(reasons)
    return [
        f"Skipped: {reason}" + (f" ({count} times)" if count > 1 else "")
        for reason, count in counts.items()
    ]


def _print_result(result: CampaignResult, profile: Profile, command: str) -> None:
    console = make_console()
    label = label_provenance(profile.provenance)
    uncertainty = f", uncertainty ± {format_share(result.uncertainty_share)}"
    console.print(
        f"Profile of {profile.device.name}: {plural(result.points, 'point')}{label}, {result.new} "
        f"of them new, in {format_duration(result.elapsed_s)}"
        f"{uncertainty if result.uncertainty_share else ''}."
    )
    provenance = describe_provenance(profile.provenance)
    console.print(f"Stopped because {result.stopped}. Provenance: {provenance}.\n")
    print_fits(console, profile)
    print_notes(console, describe_disturbances(result.repeated, result.disturbances))
    for line in list_skipped(result.skipped):
        console.print(line)
    # Not wrapped, so that it can be copied.
    console.print(f"Next: {command}", soft_wrap=True)
