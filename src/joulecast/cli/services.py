"""Commands that run until they are interrupted: ``agent``, ``fleet up`` and ``serve``.

They tell where they are, or what they found, once they are ready: as text, or as JSON.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, get_args

import click

from joulecast.agent.addresses import DEFAULT_LISTEN, read_token
from joulecast.cli.commands import STDERR
from joulecast.cli.streams import write_message
from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.nets import require_packages
from joulecast.system.errors import InputError, MeasurementError, arg
from joulecast.system.units import parse_duration
from joulecast.views.report import Answer, Report, Text

if TYPE_CHECKING:
    from joulecast.cli.progress import Announce
    from joulecast.fleet.fleet_devices import DeviceCheck

_PACKAGES = {"fastapi": "FastAPI", "uvicorn": "uvicorn", "jinja2": "Jinja2"}

Listen = Annotated[str, Argument(
    "Address that others reach; any but this machine's own needs a token.", metavar="HOST:PORT",
    harm="may let others measure here",
)]  # fmt: skip
TokenFile = Annotated[str, Argument(
    "File with the token that clients send or users sign in with.", metavar="FILE",
    default="JOULECAST_TOKEN", harm="may hold a token that others know",
)]  # fmt: skip
ServedDevice = Annotated[
    str | None,
    replace(
        get_args(given.On)[1], help="Device to measure on: cpu, cuda:0, mnn:cpu or simulated:7."
    ),
]
Stdio = Annotated[bool, Argument("Answer over stdin and stdout, for ssh.")]
FleetFile = Annotated[str, Argument("The fleet file.")]
Check = Annotated[bool, Argument("Only check the devices: store and start nothing.")]
Workers = Annotated[int | None, Argument(
    "Processes that drive the agents.", least=1, default="one per processor, at most 4"
)]  # fmt: skip
Patience = Annotated[
    str, Argument("Park a device that is away for longer.", metavar="2min", default="120s")
]
Host = Annotated[str, Argument(
    "Address to listen on; any but this machine's own needs a token.",
    harm="may let others use the dashboard",
)]  # fmt: skip
Port = Annotated[int, Argument("Port to listen on; 0 for any free one.", least=0, most=65535)]
Results = Annotated[str | None, Argument(
    "Also show the JSON results in this folder (--out).", metavar="FOLDER",
    harm="shows the files of a folder",
)]  # fmt: skip
RateLimit = Annotated[int, Argument("Requests per second of one client; 0 for no limit.", least=0)]
BehindProxy = Annotated[bool, Argument(
    "Trust X-Forwarded-For from a proxy on this machine; needs a token.",
    harm="trusts X-Forwarded-For",
)]  # fmt: skip


@verb
def serve_trials(
    *,
    on: ServedDevice = None,
    meter: given.Meter = None,
    device_name: given.RecordedName = "",
    listen: Listen = DEFAULT_LISTEN,
    token_file: TokenFile = "",
    stdio: Stdio = False,
    stdout: int | None = None,
    on_progress: Announce,
) -> None:
    """Measure trials that Joulecast sends from another machine.

    Run this on the device. Elsewhere, `joulecast profile NET --on http://HOST:8377` measures on it,
    and so do other commands with --on. The agent ends when it is interrupted.
    """
    from joulecast.agent.command import describe_agent, run_agent
    from joulecast.agent.messages import AgentDescription

    def tell(address: str, found: AgentDescription) -> None:
        on_progress({"address": address, **found.to_dict()}, describe_agent(address, found))

    with os.fdopen(os.dup(STDERR if stdout is None else stdout), "wb") as answers:
        run_agent(
            answers,
            tell,
            on=on or "cpu",
            meter=meter or "auto",
            device_name=device_name,
            listen=listen,
            token_file=token_file,
            stdio=stdio,
        )


@verb
def run_fleet_file(
    file: FleetFile,
    *,
    check: Check = False,
    workers: Workers = None,
    patience: Patience = "120s",
    store: given.Store = None,
    on_progress: Callable[[Sequence[DeviceCheck]], None],
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
    from joulecast.features.fleet import run_fleet
    from joulecast.fleet.fleet_devices import check_devices, read_fleet

    patience_s = parse_duration(patience)
    if check:
        checks = check_devices(read_fleet(file))
        on_progress(checks)
        if count := sum(not one.is_ready for one in checks):
            raise MeasurementError(f"{count} of {len(checks)} devices are not ready: see above")
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def tell(device: str, text: str) -> None:
        write_message(f"{time.strftime('%H:%M:%S')}  {device}: {text}")

    # Services are stopped by this signal.
    signal.signal(signal.SIGTERM, interrupt)
    try:
        run_fleet(
            file,
            store,
            workers=workers,
            patience_s=patience_s,
            on_start=on_progress,
            on_event=tell,
        )
    except KeyboardInterrupt:
        # The terminal shows ^C on the line of the message otherwise.
        click.echo(err=True)
        write_message("The fleet is down. What was measured is stored; run it again to go on.")


@verb
def serve_pages(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8378,
    token_file: TokenFile = "",
    results: Results = None,
    store: given.Store = None,
    rate_limit: RateLimit = 100,
    behind_proxy: BehindProxy = False,
    on_progress: Announce,
) -> Answer:
    """Show profiles, estimates and results in a browser, and answer programs over HTTP.

    It listens on this machine only, unless there is a token. It ends when it is interrupted.
    """
    require_packages("the dashboard", _PACKAGES, "web")
    from joulecast.web.app import serve_dashboard
    from joulecast.web.dashboard import WebSettings

    folder = None if results is None else Path(results).expanduser()
    if folder is not None and not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give {arg('results')} a folder of results")
    settings = WebSettings(
        store=store,
        results=folder and folder.resolve(),
        token=read_token(token_file),
        requests_per_second=rate_limit,
        is_behind_proxy=behind_proxy,
    )

    def tell(address: str) -> None:
        text = f"The dashboard is at {address}; Ctrl+C ends it."
        on_progress({"address": address}, text)

    address = serve_dashboard(settings, host, port, tell)
    return Answer({"address": address}, Report("", (Text("The dashboard has ended."),)))
