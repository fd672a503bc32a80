"""The ``joulecast`` program: its commands, and how errors become exit codes.

    exit 0   done
    exit 1   one of our errors: one line on stderr that says what to do
    exit 2   wrong usage: one line on stderr
    exit 130 interrupted; one line on stderr that says what is kept
    exit 141 the program that reads stdout has ended

A command's module is imported when the command is used, so that ``--help`` is fast: the table below
is all that help needs. Any other exception is a bug and shows its traceback.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache, partial
from importlib import import_module
from types import TracebackType
from typing import Any

import click

from joulecast.cli.commands import EXIT_INTERRUPTED, VerbCommand, make_command
from joulecast.cli.settings import list_options, read_settings
from joulecast.cli.streams import (
    ReaderGoneError,
    take_streams,
    write_lines,
    write_message,
)
from joulecast.features.arguments import MESSAGES
from joulecast.system.errors import ArgumentError, JoulecastError

COMMANDS = {
    "Look around": {
        "detect": "List the meters and devices of this machine.",
        "devices": "List the catalogue of devices; add one from a data sheet.",
        "inspect": "Show the layers of a net and the work of a step.",
        "profiles": "List, show, export, import and remove profiles.",
        "report": "Write a profile or a result as one HTML file, or as SVG.",
        "serve": "Show profiles and estimates in a browser; answer over HTTP.",
    },
    "Measure": {
        "profile": "Measure layers on a device, and fit its profile.",
        "measure": "Measure the energy of a net, or of any command.",
        "data": "Attach power traces, import and export measured runs.",
        "agent": "Measure on this device for another machine.",
        "fleet": "Profile many devices at once, and choose among them.",
    },
    "Estimate": {
        "estimate": "Estimate the energy of training or inference before it runs.",
        "generate": "Estimate what generating text with a language model costs.",
        "compare": "Rank devices, batch sizes and precisions by energy and time.",
        "search": "Search for accurate nets within an energy budget.",
        "prune": "Prune a net to an energy budget.",
        "plan": "Plan which job runs when on which device.",
    },
    "Rate": {"score": "Score a device by the energy of inferences, from A to G."},
    "Validate": {"evaluate": "Evaluate estimators on held-out random nets."},
}


def keep_if(argument: str = "", *values: object) -> Callable[[Mapping[str, Any]], str]:
    """Return what a command keeps: its measurements, if an argument has one of these values."""
    kept = "what was measured is stored; run it again to resume"
    return lambda given: kept if not argument or given.get(argument) in values else ""


def keep_trials(values: Mapping[str, Any]) -> str:
    """Return what a search keeps: its trials, if it has a storage."""
    if values.get("train") is None:
        return ""
    if storage := values.get("storage"):
        return f"finished trials are in {storage}; run it again to continue"
    return "its trials are lost; give --storage to keep them"


def show(what: str, *details: str, only_if: str = "") -> Callable[[Mapping[str, Any]], Any]:
    """Return the progress of a command, whose module is imported when it is shown."""

    def start(values: Mapping[str, Any]) -> Any:
        if only_if and not values.get(only_if):
            return nullcontext()
        return getattr(import_module("joulecast.cli.progress"), f"show_{what}")(values, *details)

    return start


VERBS = {
    "agent": VerbCommand(
        "services.serve_trials", has_out=False, progress=show("ready"), passes_stdout=True
    ),
    "compare": VerbCommand("compare.compare", has_plots=True),
    "data attach": VerbCommand("data.attach.attach_trace", has_out=False),
    "data import": VerbCommand("data.import_runs.import_runs", has_out=False),
    "data predict": VerbCommand("data.import_runs.predict_run", has_out=False),
    "data export": VerbCommand("data.export.export_data", has_out=False),
    "detect": VerbCommand("detect.detect", has_out=False),
    "devices": VerbCommand("catalogue.show_devices", has_out=False),
    "estimate": VerbCommand(
        "estimate.estimate_run",
        kept=keep_if("probe", "layers"),
        progress=show("activity", "measuring", only_if="probe"),
    ),
    "fleet up": VerbCommand("services.run_fleet_file", has_out=False, progress=show("checks")),
    "fleet bundle": VerbCommand("fleet.bundle_fleet_agent", has_out=False),
    "fleet status": VerbCommand("fleet.find_fleet_status", has_out=False),
    "fleet profile": VerbCommand(
        "fleet.profile_fleet",
        kept=lambda _: "the fleet goes on; see `joulecast fleet status`",
        progress=show("fleet"),
    ),
    "fleet estimate": VerbCommand("fleet.forecast_on_fleet"),
    "evaluate": VerbCommand(
        "evaluate.evaluate", has_plots=True, kept=keep_if(), progress=show("report")
    ),
    "generate": VerbCommand("generate.generate"),
    "inspect": VerbCommand("inspect.inspect_step", has_out=False),
    "measure": VerbCommand("measure.measure_any", passes_stdout=True),
    "plan": VerbCommand("plan.plan", has_plots=True),
    "profile": VerbCommand("profile.profile_device", kept=keep_if(), progress=show("profiling")),
    "prune": VerbCommand(
        "prune.prune",
        progress=show("activity", "choosing channels, minutes for large nets"),
    ),
    "score": VerbCommand("score.score", has_plots=True, kept=keep_if(), progress=show("report")),
    "search": VerbCommand(
        "search.search", has_plots=True, kept=keep_trials, progress=show("report")
    ),
    "serve": VerbCommand("services.serve_pages", has_out=False, progress=show("ready")),
    "profiles list": VerbCommand("profiles.list_profiles", has_out=False),
    "profiles show": VerbCommand("profiles.show_profile", has_out=False),
    "profiles export": VerbCommand("profiles.export_profile", has_out=False),
    "profiles import": VerbCommand("profiles.import_profile", has_out=False),
    "profiles remove": VerbCommand("profiles.remove_profile", has_out=False),
    "report": VerbCommand(
        "report.write_report", has_out=False, progress=show("activity", "preparing the report")
    ),
}
"""Commands that are made of a verb."""
GROUPS = {
    "fleet": "Profile many devices at once, and choose among them.",
    "data": "Attach power traces to recorded campaigns, import and export measured runs.",
    "profiles": """List, show, export, import and remove profiles.

    DEVICE is a device's name, a profile's key, or the beginning of either.
    """,
}
"""Help of the commands that have commands of their own."""

_LOG = logging.getLogger(__name__)
_ABOUT = """Estimate the energy of training or running a neural network, before it runs.

NET is a family (cnn5, resnet18:32), path/to/file.py:make_net, package.module:make_net, or a
network's .json or .onnx file. Every option can also be set in joulecast.toml, or in the
environment as JOULECAST_<OPTION>.
"""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for group in COMMANDS.values() for name in group]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load_command(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, rows in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl(list(rows.items()), col_max=12, col_spacing=2)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command line and exit."""
        sys.exit(self._run(*args, **{**extra, "standalone_mode": False}))

    def _run(self, *args: Any, **extra: Any) -> int:
        try:
            code = int(super().main(*args, **extra) or 0)
            sys.stdout.flush()
            return code
        except click.exceptions.NoArgsIsHelpError as error:
            write_lines(error.ctx.get_help() if error.ctx else "")
            return 2
        except click.ClickException as error:
            if error.__cause__ is not None:
                _LOG.debug("This error was caused by:", exc_info=error.__cause__)
            context = getattr(error, "ctx", None)
            hint = f" (see `{context.command_path} --help`)" if context else ""
            return _report_error(error.format_message() + hint, error.exit_code)
        except click.Abort:
            return _report_error("interrupted", EXIT_INTERRUPTED)
        except JoulecastError as error:
            _LOG.debug("This error was caused by:", exc_info=error)
            return _report_error(str(error), 2 if isinstance(error, ArgumentError) else 1)
        except ReaderGoneError:
            return 141


@click.group(
    cls=LazyGroup,
    help=_ABOUT,
    context_settings={"max_content_width": 100},
    invoke_without_command=True,
    no_args_is_help=True,
)
@click.option("-v", "--verbose", is_flag=True, help="Log to stderr.")
@click.option(
    "--trust", metavar="FOLDER", help="From now on, files in FOLDER may name code to run."
)
@click.version_option(None, "--version", package_name="joulecast")
@click.pass_context
def cli(ctx: click.Context, verbose: bool, trust: str | None) -> None:
    """Read settings and set up logging."""
    _set_up_logging(verbose)
    if trust is not None:
        from joulecast.features.trust import trust_folder

        write_message(f"Trusted from now on: {trust_folder(trust)}")
    if ctx.invoked_subcommand is None:
        if trust is None:
            ctx.fail("Missing command.")
        return
    ctx.default_map = read_settings(cli.list_commands(ctx), partial(cli.get_command, ctx))


def main() -> None:
    """Run the program ``joulecast``."""
    # Our matrices are small: NumPy's own threads would spin for longer than they compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    take_streams()
    sys.excepthook = _report_bug
    warnings.showwarning = _show_warning
    # Warnings of libraries, where nobody has set up logging.
    logging.lastResort = _CleanHandler(logging.WARNING)
    try:
        cli.main(prog_name="joulecast")
    finally:
        # What a net prints when Python ends does not belong to the result either.
        sys.stdout = sys.stderr


class _CleanHandler(logging.Handler):
    """Write log records to stderr, without passwords and control characters."""

    def emit(self, record: logging.LogRecord) -> None:
        write_lines(self.format(record))


def _set_up_logging(verbose: bool) -> None:
    root = logging.getLogger()
    # Of an earlier command line of the same process.
    for earlier in [one for one in root.handlers if isinstance(one, _CleanHandler)]:
        root.removeHandler(earlier)
    logging.getLogger("joulecast").setLevel(logging.DEBUG if verbose else logging.NOTSET)
    messages = logging.getLogger(MESSAGES)
    messages.handlers, messages.propagate = [_CleanHandler(logging.INFO)], False
    messages.setLevel(logging.INFO)
    if not verbose:
        return
    handler = _CleanHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    root.addHandler(handler)


@cache
def _load_command(name: str) -> click.Command:
    """Import a command, once."""
    if name in GROUPS:
        return _make_group(name)
    module, _, function = VERBS[name].verb.rpartition(".")
    package = "cli" if module == "services" else "features"
    verb = getattr(import_module(f"joulecast.{package}.{module}"), function)
    return make_command(name.rpartition(" ")[2], verb, VERBS[name])


def _make_group(name: str) -> click.Group:
    """Return a command that has commands of its own; settings of its table apply to each."""
    inner = [_load_command(one) for one in VERBS if one.startswith(f"{name} ")]
    options = {one.name or "": {option.name for option in list_options(one)} for one in inner}

    def share_settings() -> None:
        context = click.get_current_context()
        given = (context.default_map or {}).items()
        # An option of one command may have the name of another one's argument.
        context.default_map = {
            command: {name: value for name, value in given if name in names}
            for command, names in options.items()
        }

    return click.Group(name, inner, callback=share_settings, help=inspect.cleandoc(GROUPS[name]))


def _report_bug(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    write_lines("".join(traceback.format_exception(kind, error, where)).rstrip())


def _show_warning(message: Warning | str, *place: Any, **options: Any) -> None:
    write_lines(warnings.formatwarning(message, *place[:3]).rstrip())


def _report_error(message: str, code: int) -> int:
    write_message(f"joulecast: {' '.join(message.split())}")
    return code
