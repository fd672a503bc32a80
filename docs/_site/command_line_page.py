"""Write the page of every command and option, from the program itself."""

from __future__ import annotations

import html
import inspect
from collections.abc import Iterator

import click

from joulecast.cli.main import COMMANDS, cli


def write_page() -> str:
    """Return the page in Markdown."""
    lines = [
        "# Every option",
        "",
        "Made from the program: this is what `joulecast COMMAND --help` prints. Every option can",
        "also be set as `JOULECAST_<OPTION>` or in `joulecast.toml`.",
        "",
    ]
    root = click.Context(cli, info_name="joulecast")
    for title, names in COMMANDS.items():
        lines += [f"## {title}", ""]
        for name in names:
            command = cli.get_command(root, name)
            assert command is not None
            lines += _describe(command, click.Context(command, root, info_name=name), 3)
    return "\n".join(lines)


def _describe(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """Yield the lines about a command, then those about its own commands."""
    yield f"{'#' * level} {context.command_path}"
    yield ""
    # Click marks paragraphs that keep their lines with this character.
    yield inspect.cleandoc((command.help or "").replace("\b\n", "").replace("\f", ""))
    yield ""
    yield f"    {command.get_usage(context).removeprefix('Usage: ')}"
    yield ""
    rows = [one for one in map(_write_row, command.get_params(context), [context] * 200) if one]
    if rows:
        yield from ("| option | meaning |", "|---|---|", *rows, "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _describe(inner, click.Context(inner, context, info_name=name), level + 1)


def _write_row(parameter: click.Parameter, context: click.Context) -> str | None:
    record = parameter.get_help_record(context)
    if record is None:
        return None
    names, text = (_escape(one) for one in record)
    return f"| <code>{names}</code> | {text} |"


def _escape(text: str) -> str:
    return (
        html.escape(" ".join(text.split()), quote=False)
        .replace("|", "&#124;")
        .replace("*", "&#42;")
        .replace("_", "&#95;")
    )
