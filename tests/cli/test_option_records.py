"""Values of several options reach a command as one record."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import click
from click.testing import CliRunner

from joulecast.cli.main import cli
from joulecast.cli.option_records import collect


@dataclass(frozen=True)
class Limits:
    points: int
    rest_w: float | None


def test_options_become_a_record():
    @click.command()
    @collect(
        "limits",
        Limits,
        click.option("--points", type=int, default=3),
        click.option("--rest-w", type=float),
    )
    @click.option("--json", is_flag=True)
    def command(limits: Limits, json: bool) -> None:
        click.echo(f"{limits} {json}")

    assert CliRunner().invoke(command, ["--points", "5", "--json"]).output == (
        f"{Limits(5, None)} True\n"
    )
    names = [param.name for param in command.params]
    assert names == ["points", "rest_w", "json"]


def test_options_that_are_not_exposed_are_left_out():
    @click.command()
    @collect(
        "limits",
        Limits,
        click.option("--points", type=int, default=3),
        click.option("--rest-w", type=float),
        click.option("--quiet", is_flag=True, expose_value=False),
    )
    def command(limits: Limits) -> None:
        click.echo(limits)

    done = CliRunner().invoke(command, ["--quiet", "--rest-w", "2"])
    assert done.output == f"{Limits(3, 2.0)}\n"


def test_commands_take_at_most_seven_records():
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        inner = command.commands.values() if isinstance(command, click.Group) else [command]
        for one in inner:
            assert len(inspect.signature(one.callback).parameters) <= 7, one.name
