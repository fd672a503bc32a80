"""``joulecast agent``: measure trials for another machine."""

from __future__ import annotations

import os

import click

from joulecast.agent.addresses import DEFAULT_LISTEN
from joulecast.agent.command import ServeOptions, describe_agent, run_agent
from joulecast.agent.messages import AgentDescription
from joulecast.agent.service import AgentOptions
from joulecast.cli import options
from joulecast.cli.option_records import collect
from joulecast.cli.streams import find_descriptor, write_message
from joulecast.cli.terminal import print_json


@click.command()
@collect("measuring", AgentOptions, options.on, options.meter, options.device_name)
@collect(
    "serving",
    ServeOptions,
    click.option(
        "--listen",
        default=DEFAULT_LISTEN,
        show_default=True,
        metavar="HOST:PORT",
        help="Address that others reach; any but this machine's own needs a token.",
    ),
    click.option(
        "--token-file",
        default="",
        metavar="FILE",
        help="File with the token that clients send.  [default: JOULECAST_TOKEN]",
    ),
    click.option("--stdio", is_flag=True, help="Answer over stdin and stdout, for ssh."),
)
@click.option("--json", is_flag=True, help="Print address and device as JSON once it listens.")
def agent(measuring: AgentOptions, serving: ServeOptions, json: bool) -> None:
    """Measure trials that Joulecast sends from another machine.

    Run this on the device. Elsewhere, `joulecast profile NET --on http://HOST:8377` measures on it,
    and so do other commands with --on. The agent ends when it is interrupted.
    """
    if json and serving.stdio:
        raise click.UsageError("--json and --stdio both use stdout", click.get_current_context())
    descriptor = find_descriptor()
    with os.fdopen(os.dup(2 if descriptor is None else descriptor), "wb") as answers:
        run_agent(measuring, serving, answers, _print_ready if json else _say_ready)


def _print_ready(address: str, description: AgentDescription) -> None:
    print_json({"address": address, **description.to_dict()})


def _say_ready(address: str, description: AgentDescription) -> None:
    write_message(describe_agent(address, description))
