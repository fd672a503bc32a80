"""``joulecast``: the group of commands, and the one place where errors become exit codes.

    exit 0   done
    exit 1   one of our errors: one line on stderr that says what to do
    exit 2   wrong usage: one line on stderr
    exit 130 interrupted; what was measured is kept

A command's module is imported when it is asked for, so that ``--help`` is there at once: the table
below is all that help needs. Anything else that is raised is a bug and shows its traceback.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module
from typing import Any

import click

from joulecast.cli.settings import name_variables, read_settings
from joulecast.errors import JoulecastError

COMMANDS = {
    "Look": {
        "detect": "Say which meters and devices there are.",
        "inspect": "Show what a net consists of, layer by layer.",
        "profiles": "List, show, export, import and remove profiles.",
    },
    "Learn": {
        "profile": "Learn what layers cost on a device.",
        "measure": "Measure a net, or any command, under a meter.",
    },
    "Ask": {
        "estimate": "Say what training a net will cost, before it runs.",
        "compare": "Rank devices, batches and precisions by joules and seconds.",
        "search": "Search nets that are good and keep an energy budget.",
        "prune": "Cut a net's channels until it fits an energy budget.",
        "plan": "Say which job runs when on which device.",
    },
    "Check": {
        "evaluate": "Judge estimators by random nets of a family.",
    },
}
_ABOUT = """What training a neural network costs in joules on your device, before you run it.

NET is a family (cnn5, resnet18:32), path/to/file.py:make_net, package.module:make_net, or the
.json of a network. Every option can also stand in joulecast.toml, or in the environment as
JOULECAST_<OPTION>.
"""


class LazyGroup(click.Group):
    """Commands by name, imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for group in COMMANDS.values() for name in group]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = import_module(f"joulecast.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        name_variables(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, rows in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl(list(rows.items()), col_max=12, col_spacing=2)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command line and exit."""
        sys.exit(self._run(*args, **{**extra, "standalone_mode": False}))

    def _run(self, *args: Any, **extra: Any) -> int:
        try:
            return int(super().main(*args, **extra) or 0)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help() if error.ctx else "", err=True)
            return 2
        except click.ClickException as error:
            return _complain(_one_line(error), error.exit_code)
        except click.Abort:
            return _complain("interrupted: what was measured is kept; run it again to go on", 130)
        except JoulecastError as error:
            return _complain(str(error), 1)


@click.group(cls=LazyGroup, help=_ABOUT, context_settings={"max_content_width": 100})
@click.option("-v", "--verbose", is_flag=True, help="Say on stderr what happens meanwhile.")
@click.version_option(None, "--version", package_name="joulecast")
@click.pass_context
def cli(ctx: click.Context, verbose: bool) -> None:
    """Set up what all commands share."""
    ctx.default_map = read_settings(cli.list_commands(ctx), partial(cli.get_command, ctx))
    if verbose:
        import logging

        logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
        logging.getLogger("joulecast").setLevel(logging.DEBUG)


def main() -> None:
    """The entry point of the program ``joulecast``."""
    # Our matrices are small: threads of numpy's own would spin for longer than they compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    cli.main(prog_name="joulecast")


def _complain(message: str, code: int) -> int:
    click.echo(f"joulecast: {' '.join(message.split())}", err=True)
    return code


def _one_line(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" (see `{context.command_path} --help`)" if context else ""
    return error.format_message() + hint
