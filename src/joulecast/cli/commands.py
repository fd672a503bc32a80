"""Make a command of a verb: its options from the verb's arguments, its output from the result.

    joulecast estimate cnn5 --batch 64 --json
              │        │    └─ options: the verb's declared arguments, then those of its report
              │        └────── arguments without a default
              └─────────────── the verb; its result is printed as a report, or as JSON

Every command has ``--json`` and ``--out FILE``; ``--plot FILE`` if its report has plots.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

import click

from joulecast.cli.streams import find_descriptor, get_results, reserve_results
from joulecast.features.arguments import Argument, Declaration, list_arguments
from joulecast.system.errors import ArgumentError, FileError, InputError, JoulecastError

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    # Generic in newer versions of Click only.
    ParamType = click.ParamType

_AFTER_DASHES = "joulecast.cli.commands.after_dashes"
STDERR = 2
EXIT_INTERRUPTED = 130
PLOT_SUFFIXES = (".html", ".svg", ".png", ".pdf")


@dataclass(frozen=True)
class VerbCommand:
    """What a command has beyond its verb.

    Attributes:
        kept: What is kept if the user interrupts it, given the arguments; empty if nothing is.
        progress: Context that yields the value of ``on_progress``, given the arguments.
    """

    verb: str = ""  # module and function in features, which are imported when the command is used
    has_plots: bool = False  # whether its report may have plots
    has_out: bool = True  # whether --out writes the result; off for a verb with its own file
    kept: Callable[[Mapping[str, Any]], str] = lambda _: ""
    progress: Callable[[Mapping[str, Any]], AbstractContextManager[Any]] | None = None
    passes_stdout: bool = False  # whether the verb takes the descriptor of stdout, for what it runs


class CommandInterruptedError(click.ClickException):
    """The user interrupted a command that leaves something behind."""

    exit_code = EXIT_INTERRUPTED


def parse_plot_file(text: str) -> str:
    """Return the file of a plot; its suffix chooses the format."""
    if Path(text).suffix.lower() not in PLOT_SUFFIXES:
        raise InputError(f"give a file that ends in {', '.join(PLOT_SUFFIXES)}")
    return text


RUNTIME = Declaration("runtime", str, None, Argument(
    "Framework of the device: torch, mnn, onnx or a plug-in; `--runtime mnn` is `--on mnn:cpu`.",
    metavar="NAME", harm="may run a plug-in",
    is_harmless=lambda text: text in ("torch", "mnn", "onnx", "simulated"),
))  # fmt: skip
OUT = Declaration("out", str, None, Argument(
    "Also write the result as JSON.", metavar="FILE", harm="writes a file", is_written=True
))  # fmt: skip
PLOT = Declaration("plot", str, None, Argument(
    f"Also plot it: {', '.join(PLOT_SUFFIXES[:-1])} or {PLOT_SUFFIXES[-1]}.",
    metavar="FILE", harm="writes a file", is_written=True, parse=parse_plot_file,
))  # fmt: skip
JSON = Declaration("json", bool, False, Argument("Print the result as JSON."))


def make_command(name: str, verb: Callable[..., Any], extras: VerbCommand) -> click.Command:
    """Return the command of a verb."""
    arguments, shown = list_arguments(verb), _list_report_arguments(verb)
    added = [RUNTIME] if any(one.name == "on" for one in arguments) else []
    added += [*([OUT] if extras.has_out else []), *([PLOT] if extras.has_plots else []), JSON]
    declared = (*arguments, *shown, *added)
    names = {one.setting: one.name for one in declared}

    def run(**given: Any) -> int:
        context = click.get_current_context()
        values = {names.get(key, key): value for key, value in given.items()}
        view = {one.name: values.pop(one.name) for one in shown}
        own = {one.name: values.pop(one.name) for one in added}
        named, runtime = values.get("device") or values.get("profile"), own.get("runtime")
        if runtime is not None and named and is_typed(context, "runtime"):
            raise click.UsageError("give --device or --runtime, not both", context)
        if runtime is not None and not named:
            from joulecast.runtimes import join_runtime

            values["on"] = join_runtime(runtime, values["on"] or "")
        # Click gives an empty tuple for an option that may be repeated.
        values = {one: value for one, value in values.items() if value not in (None, ())}
        values.update(context.meta.get(_AFTER_DASHES, {}))
        if extras.passes_stdout:
            # The verb's own output is the result; JSON has stdout for itself.
            values["stdout"] = STDERR if own["json"] else find_descriptor()
        try:
            with _watch(extras, values):
                result = _call(verb, values, context)
            if result is None:
                # A service has printed all it has to say.
                return 0
        except JoulecastError as error:
            message = error.describe(make_mention(declared))
            if isinstance(error, ArgumentError):
                raise click.UsageError(message, context) from error
            raise click.ClickException(message) from error
        out, plot = own.get("out"), own.get("plot")
        if out:
            write_json(out, result.to_dict())
        if plot:
            plots = result.report(**view).plots
            if not plots:
                raise click.ClickException("there is nothing to plot: leave --plot out")
            from joulecast.views.plots import save_plots

            save_plots(plots, Path(plot))
        print_result(result, own["json"], **view)
        code: int = result.finish_command()
        return code

    kind = click.Command
    if any(one.about.is_after_dashes for one in arguments):
        kind = CommandAfterDashes
    options = [_make_option(one) for one in declared if not one.about.is_after_dashes]
    text = re.split(r"\n(?:Args|Returns|Raises):", inspect.cleandoc(verb.__doc__ or ""))[0]
    return kind(
        name, callback=reserve_results()(run), params=options, help=text.replace("``", "").strip()
    )


def make_mention(arguments: Sequence[Declaration]) -> Callable[[str, str | None], str]:
    """Return the function that writes an argument as it is typed: ``--steps 5``."""
    declared = {one.name: one for one in arguments}

    def mention(name: str, value: str | None) -> str:
        known = declared.get(name)
        if known is None:
            return f"--{name.replace('_', '-')}" + ("" if value is None else f" {value}")
        if _is_positional(known):
            return name.upper()
        is_usual = value in (None, "True", str(known.about.flag_value))
        return f"--{known.option}" + ("" if is_usual or _is_flag(known) else f" {value}")

    return mention


def _list_report_arguments(verb: Callable[..., Any]) -> tuple[Declaration, ...]:
    """Return the arguments of the ``report`` of a verb's result, which choose what is shown."""
    function = inspect.unwrap(verb)
    result = eval(function.__annotations__["return"], function.__globals__)
    report = getattr(result, "report", None)
    return () if report is None else list_arguments(report)


def _call(verb: Callable[..., Any], values: dict[str, Any], context: click.Context) -> Any:
    """Call a verb; what settings say is left out where it contradicts the rest.

    A verb refuses arguments that contradict each other before it works. Of those that its message
    mentions, the last one that was not typed goes.
    """
    while True:
        try:
            return verb(**values)
        except ArgumentError as error:
            names = {one.name: one.setting for one in list_arguments(verb)}
            untyped = [
                name
                for name in error.mentions
                if name in values and name in names and not is_typed(context, names[name])
            ]
            if not untyped:
                raise
            del values[untyped[-1]]


def is_typed(context: click.Context, name: str) -> bool:
    """Return whether an option was given on the command line, not by settings or default."""
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


@contextmanager
def _watch(extras: VerbCommand, values: dict[str, Any]) -> Iterator[None]:
    """Show the progress of a verb; an interruption becomes an error that says what is kept."""
    try:
        with extras.progress(values) if extras.progress else nullcontext() as callback:
            if callback is not None:
                values["on_progress"] = callback
            yield
    except KeyboardInterrupt as error:
        kept = extras.kept(values)
        if not kept:
            raise
        # The terminal shows ^C on the line of the message otherwise.
        click.echo(err=True)
        raise CommandInterruptedError(f"interrupted: {kept}") from error


# ---------------------------------------------------------------------------------------------
# Options


def _is_positional(one: Declaration) -> bool:
    return one.about.is_positional or (one.is_required and one.is_positional)


def _is_flag(one: Declaration) -> bool:
    """Return whether its option takes no value; one with choices may also be given alone."""
    return one.type is bool or (one.about.flag_value is not None and not one.about.choices)


def _make_option(one: Declaration) -> click.Parameter:
    about, is_several = one.about, get_origin(one.type) is tuple
    if _is_positional(one):
        count = -1 if is_several else 1
        return click.Argument(
            [one.name], type=DeclaredType(one), nargs=count, required=one.is_required
        )
    default = about.default
    if not default and one.type in (int, float, str) and one.default not in (None, ""):
        default = f"{one.default:g}" if one.type is float else str(one.default)
    text = about.help + (f"  [default: {default}]" if default and not one.is_required else "")
    negated = f"/--no-{one.option}" if about.is_negatable else ""
    names = [f"--{one.option}{negated}", one.setting]
    if _is_flag(one):
        value = True if about.flag_value is None else about.flag_value
        option = DeclaredOption(names, is_flag=True, flag_value=value, default=None, help=text)
    else:
        metavar = about.metavar or (f"[{'|'.join(about.choices)}]" if about.choices else None)
        alone: dict[str, Any] = {}
        if about.flag_value is not None:
            # The value of the option alone: --probe.
            alone = {"is_flag": False, "flag_value": about.flag_value}
        option = DeclaredOption(
            names,
            type=DeclaredType(one),
            metavar=metavar or {int: "N", float: "X"}.get(one.type, "TEXT"),
            required=one.is_required,
            multiple=about.is_repeated or about.is_joined,
            help=text,
            **alone,
        )
    option.about = about
    option.envvar = f"JOULECAST_{one.setting.rstrip('_').upper()}"
    # Several lists become one.
    option.is_flat = is_several
    return option


class CommandAfterDashes(click.Command):
    """A command that leaves everything after ``--`` unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_AFTER_DASHES] = {"command": tuple(args[place + 1 :])}
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "NET | -- COMMAND ..."]


class DeclaredOption(click.Option):
    """An option of a declared argument; a settings file may give one value of several alone."""

    about: Argument
    is_flat = False

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        if self.is_flag:
            if value is None:
                return None
            # Settings say true or false, whatever the flag stands for.
            if str(value).lower() in ("false", "0", "no", "off", ""):
                return False if self.about.is_negatable else None
            return self.flag_value
        if value is None or value == () or not self.multiple:
            return None if value == () else super().type_cast_value(ctx, value)
        texts = [value] if isinstance(value, str) else list(value)
        if self.about.is_joined:
            return self.type.convert(",".join(texts), self, ctx)
        values = super().type_cast_value(ctx, texts)
        if not self.is_flat:
            return values
        parts = (one if isinstance(one, tuple) else (one,) for one in values)
        return tuple(inner for part in parts for inner in part)


class DeclaredType(ParamType):
    """The type of a declared argument: a text becomes what the verb takes."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.name = declaration.name

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value."""
        one = self.declaration
        try:
            if one.about.parse is None and isinstance(value, str) and one.type in (int, float):
                # The declaration says what is wrong with a text that is not a number.
                with suppress(ValueError):
                    value = one.type(value)
            return one.convert(value)
        except InputError as error:
            text = error.describe(lambda name, _: "")
            self.fail(text.removeprefix(" is "), param, ctx)


# ---------------------------------------------------------------------------------------------
# Results


def print_result(result: Any, as_json: bool, **view: Any) -> None:
    """Print a result as a report, or as JSON."""
    if as_json:
        print_json(result.to_dict())
        return
    from joulecast.views.terminal import make_console, print_report

    print_report(result.report(**view), make_console(get_results()))


def write_json(path: str, data: Any) -> None:
    """Write a value to a file as JSON."""
    try:
        Path(path).write_text(format_json(data) + "\n", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {path} ({reason}): give another --out") from error


def format_json(data: Any) -> str:
    """Return a value as indented JSON."""
    # JSON escapes every control character but this one.
    return json.dumps(data, indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def print_json(data: Any) -> None:
    """Print a value as JSON."""
    stream = get_results()
    stream.write(format_json(data) + "\n")
    stream.flush()
