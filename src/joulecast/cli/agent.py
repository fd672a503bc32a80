"""``joulecast agent``: measure trials for another machine."""

from __future__ import annotations

import os

import click

from joulecast.agent.addresses import DEFAULT_LISTEN
from joulecast.agent.command import describe_agent, run_agent
from joulecast.agent.messages import AgentDescription
from joulecast.cli.commands import print_json
from joulecast.cli.streams import find_descriptor, write_message
from joulecast.runtimes import join_runtime


@click.command()
@click.option(
    "--on", metavar="DEVICE", help="Device to measure on: cpu, cuda:0, mnn:cpu.  [default: cpu]"
)
@click.option(
    "--runtime", metavar="NAME", help="Framework of the device: torch, mnn, onnx or a plug-in."
)
@click.option("--meter", default="auto", show_default=True, help="Meter, see `joulecast detect`.")
@click.option(
    "--device-name", default="", metavar="NAME", help="Record the device under another name."
)
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Address that others reach; any but this machine's own needs a token.",
)
@click.option(
    "--token-file",
    default="",
    metavar="FILE",
    help="File with the token that clients send.  [default: JOULECAST_TOKEN]",
)
@click.option("--stdio", is_flag=True, help="Answer over stdin and stdout, for ssh.")
@click.option("--json", is_flag=True, help="Print address and device as JSON once it listens.")
def agent(
    on: str | None,
    runtime: str | None,
    meter: str,
    device_name: str,
    listen: str,
    token_file: str,
    stdio: bool,
    json: bool,
) -> None:
    """Measure trials that Joulecast sends from another machine.

    Run this on the device. Elsewhere, `joulecast profile NET --on http://HOST:8377` measures on it,
    and so do other commands with --on. The agent ends when it is interrupted.
    """
    if json and stdio:
        raise click.UsageError("--json and --stdio both use stdout", click.get_current_context())
    descriptor = find_descriptor()
    with os.fdopen(os.dup(2 if descriptor is None else descriptor), "wb") as answers:
        place = join_runtime(runtime, on or "") if runtime else on or "cpu"
        run_agent(
            answers,
            _print_ready if json else _say_ready,
            on=place,
            meter=meter,
            device_name=device_name,
            listen=listen,
            token_file=token_file,
            stdio=stdio,
        )


def _print_ready(address: str, description: AgentDescription) -> None:
    print_json({"address": address, **description.to_dict()})


def _say_ready(address: str, description: AgentDescription) -> None:
    write_message(describe_agent(address, description))
