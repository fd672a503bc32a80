"""``joulecast fleet``: profile many devices at once, and choose among them."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import asdict
from types import FrameType
from typing import Any

import click

from joulecast.budgets import RunLength
from joulecast.cli import options
from joulecast.cli.interruptions import report_interruption
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import SHARE, ListType, NumberType
from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.print_fleet import (
    describe_checks,
    describe_forecast,
    describe_status,
    print_campaigns,
    print_checks,
    print_event,
    print_forecast,
    print_status,
    show_fleet,
)
from joulecast.cli.streams import write_message
from joulecast.cli.terminal import make_console, print_json
from joulecast.errors import InputError, MeasurementError
from joulecast.features.agent_bundle import bundle_agent
from joulecast.features.fleet import (
    ALL_DEVICES,
    DEFAULT_CONFIDENCE,
    DEFAULT_PATIENCE_S,
    check_fleet,
    find_fleet_status,
    follow_request,
    forecast_net,
    request_profiles,
    run_fleet,
)
from joulecast.features.nets import NetRequest
from joulecast.features.options import EstimateOptions, ProfileOptions
from joulecast.fleet.fleet_devices import DeviceCheck
from joulecast.fleet.fleet_forecast import RunQuestion
from joulecast.store.campaigns import DONE
from joulecast.units import format_bytes, parse_duration, parse_share

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


@click.group()
@click.pass_context
def fleet(ctx: click.Context) -> None:
    """Profile many devices at once, and choose among them."""
    # Settings of [fleet] apply to each of its commands.
    ctx.default_map = dict.fromkeys(fleet.commands, ctx.default_map)


@fleet.command()
@click.argument("file")
@options.json
def bundle(file: str, json: bool) -> None:
    """Write the agent to FILE (agent.pyz), for devices without Joulecast.

    It needs Python 3.10 or later there, and the framework that trains: PyTorch or MNN.
    """
    size_bytes = bundle_agent(file)
    if json:
        print_json({"file": file, "size_bytes": size_bytes})
        return
    console = make_console()
    console.print(f"Wrote {file} ({format_bytes(size_bytes)}).")
    console.print("Next: copy it to the device and run it there with python3.")


@fleet.command()
@click.argument("file")
@click.option("--check", is_flag=True, help="Only check the devices: store and start nothing.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Processes that drive the agents.  [default: one per processor, at most 4]",
)
@click.option(
    "--patience",
    default=f"{DEFAULT_PATIENCE_S:.0f}s",
    show_default=True,
    metavar="2min",
    help="Park a device that is away for longer.",
)
@options.store
@options.json
def up(
    file: str, check: bool, workers: int | None, patience: str, store: str | None, json: bool
) -> None:
    """Check the devices of FILE, and run their campaigns.

    FILE is a TOML file with a [[device]] for each agent: name, address, token_file, runtime, meter,
    power_mode, battery_wh, charge, reserve, rest_w, memory. All devices are checked first and
    stored; one that is away is tried again, and parked if it stays away.

    The command then runs until it is interrupted. It waits for `joulecast fleet profile` of any
    machine with the same store, and measures on all devices at once, one measurement at a time on
    each. Stop it with Ctrl-C: what was measured is stored, and open campaigns go on when it runs
    again.
    """
    output, patience_s = OutputOptions(json=json), parse_duration(patience)

    def show(checks: Sequence[DeviceCheck]) -> None:
        write_result(output, describe_checks(checks), lambda: print_checks(checks))

    if check:
        checks = check_fleet(file)
        show(checks)
        if count := sum(not one.is_ready for one in checks):
            raise MeasurementError(f"{count} of {len(checks)} devices are not ready: see above")
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Services are stopped by this signal.
    signal.signal(signal.SIGTERM, interrupt)
    try:
        run_fleet(
            file,
            store,
            workers=workers,
            patience_s=patience_s,
            on_start=show,
            on_event=print_event,
        )
    except KeyboardInterrupt:
        # The terminal shows ^C on the line of the message otherwise.
        click.echo(err=True)
        write_message("The fleet is down. What was measured is stored; run it again to go on.")


@fleet.command()
@options.store
@options.json
def status(store: str | None, json: bool) -> None:
    """Show the devices of the fleet, and how far their campaigns are."""
    found = find_fleet_status(store)
    output = OutputOptions(json=json)
    write_result(output, describe_status(found), lambda: print_status(found))


@fleet.command()
@click.argument("net")
@click.option(
    "--devices",
    type=ListType(),
    default=ALL_DEVICES,
    show_default=True,
    metavar="NAME,NAME",
    help="Devices of the fleet, or all.",
)
@options.checkpointed_net_options
@collect(
    "profiling",
    make_profile_options,
    *CAMPAIGN_LIMITS,
    click.option(
        "--seconds",
        type=NumberType(0),
        help="Stop after this time on each device.  [default: 600, or --points]",
    ),
    options.estimator,
)
@options.rounds
@click.option("--detach", is_flag=True, help="Request it and end: see `joulecast fleet status`.")
@options.store
@options.output
def profile(
    request: NetRequest,
    devices: tuple[str, ...],
    profiling: ProfileOptions,
    rounds: int,
    detach: bool,
    store: str | None,
    output: OutputOptions,
) -> None:
    """Profile devices of the fleet with layers like those of NET.

    The fleet must be up (`joulecast fleet up`); it runs the campaigns, also if this command is
    interrupted. A device that stays away is parked and reported, and goes on when it is back.
    """
    net, setup = request.resolve()
    key = request_profiles(net, setup, devices, profiling, rounds, store)
    kept = "the fleet goes on; see `joulecast fleet status`"
    with report_interruption(kept), show_fleet() as tell:
        campaigns = follow_request(key, store, tell, waits=not detach)
    data = {"network": net.network.name, "devices": [asdict(one) for one in campaigns]}
    write_result(output, data, lambda: print_campaigns(campaigns))
    left = [one for one in campaigns if one.state != DONE]
    if left and not detach:
        raise MeasurementError(
            f"{len(left)} of {len(campaigns)} devices have no new profile; {left[0].device}: "
            f"{left[0].reason}"
        )


@fleet.command()
@click.argument("net")
@options.checkpointed_net_options
@collect(
    "length",
    options.make_run_length,
    options.steps,
    options.inferences,
    options.epochs,
    options.samples,
)
@click.option("--deadline", metavar="2h", help="Longest duration of the run.")
@click.option(
    "--confidence",
    type=SHARE,
    default=f"{100 * DEFAULT_CONFIDENCE:g}%",
    show_default=True,
    help="Probability with which battery and deadline must suffice.",
)
@click.option(
    "--charge",
    multiple=True,
    metavar="NAME=60%",
    help="Charge of a device now, instead of that of the fleet file.",
)
@options.estimating
@options.output
def estimate(
    request: NetRequest,
    length: RunLength,
    deadline: str | None,
    confidence: float,
    charge: tuple[str, ...],
    estimating: EstimateOptions,
    output: OutputOptions,
) -> None:
    """Estimate a run of NET on every device, and who can finish it.

    For every device: joules with an interval, seconds, the share of its battery, and what prevents
    it from finishing (memory, battery or deadline). With --json, a scheduler such as Flower's can
    choose the clients of a round.
    """
    deadline_s = None if deadline is None else parse_duration(deadline)
    charges = dict(map(_parse_charge, charge))
    net, setup = request.resolve()
    steps = length.count_steps(setup.samples_per_step)
    question = RunQuestion(steps, deadline_s, confidence, charges)
    found = forecast_net(net, setup, question, estimating)
    write_result(output, describe_forecast(found), lambda: print_forecast(found))


def _parse_charge(text: str) -> tuple[str, float]:
    """Return the device and the share of a text like ``phone=60%``."""
    name, separator, share = text.rpartition("=")
    if not separator:
        raise InputError(f"--charge {text!r}: give a device and its charge, like phone=60%")
    return name, parse_share(share)
