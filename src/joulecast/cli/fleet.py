"""``joulecast fleet up``: run the campaigns of a fleet until it is interrupted."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

import click

from joulecast.cli.commands import print_json
from joulecast.cli.streams import get_results, write_message
from joulecast.system.errors import MeasurementError
from joulecast.system.units import parse_duration

if TYPE_CHECKING:
    from joulecast.fleet.fleet_devices import DeviceCheck


@click.command()
@click.argument("file")
@click.option("--check", is_flag=True, help="Only check the devices: store and start nothing.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Processes that drive the agents.  [default: one per processor, at most 4]",
)
@click.option(
    "--patience",
    default="120s",
    show_default=True,
    metavar="2min",
    help="Park a device that is away for longer.",
)
@click.option("--store", metavar="PATH", help="The store: a file, or a postgresql:// URL.")
@click.option("--json", is_flag=True, help="Print the result as JSON.")
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
    from joulecast.features.fleet import answer_checks, run_fleet
    from joulecast.fleet.fleet_devices import check_devices, read_fleet

    patience_s = parse_duration(patience)

    def show(checks: Sequence[DeviceCheck]) -> None:
        answer = answer_checks(checks)
        if json:
            print_json(answer.to_dict())
        else:
            from joulecast.views.terminal import make_console, print_report

            print_report(answer.report(), make_console(get_results()))

    if check:
        checks = check_devices(read_fleet(file))
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
            on_event=lambda device, text: write_message(
                f"{time.strftime('%H:%M:%S')}  {device}: {text}"
            ),
        )
    except KeyboardInterrupt:
        # The terminal shows ^C on the line of the message otherwise.
        click.echo(err=True)
        write_message("The fleet is down. What was measured is stored; run it again to go on.")
