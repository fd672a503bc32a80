"""``joulecast data``: joules that come later, and data of other tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from joulecast.cli import options
from joulecast.cli.option_records import collect
from joulecast.cli.terminal import label_provenance, make_console, plural, print_json, print_table
from joulecast.features.data_export import EXPORT_FORMATS, TIDY, export_observations
from joulecast.features.data_import import ImportOptions, RunPrediction, import_log, predict_net
from joulecast.features.data_levels import LEVELS, export_dataset
from joulecast.features.nets import NetRequest
from joulecast.features.options import EstimateOptions
from joulecast.traces.run_logs import AUTO, TOOLS
from joulecast.units import format_duration, format_energy, format_share

if TYPE_CHECKING:
    from joulecast.features.data import TraceAttachment

# Reasons are often the same for many trials.
_MOST_REASONS = 10


@click.group()
@click.pass_context
def data(ctx: click.Context) -> None:
    """Attach power traces to recorded campaigns, import and export measured runs."""
    # Settings of [data] apply to each of its commands.
    ctx.default_map = dict.fromkeys(data.commands, ctx.default_map)


@data.command()
@click.argument("trace")
@click.option("--device", default="", help="Device of the recordings.  [default: the only one]")
@click.option("--run", default="", help="Only this run of Joulecast.  [default: all of them]")
@options.estimator
@options.from_
@options.store
@options.json
def attach(trace: str, json: bool, **names: Any) -> None:
    """Fill in joules from TRACE, a CSV file of time and power.

    For campaigns that were recorded with --meter later. Load pulses are found in the trace, its
    clock is aligned with that of the run, and the power in each window is integrated. What the
    trace does not cover stays as it was.
    """
    from joulecast.features.data import attach_trace

    result = attach_trace(trace, **names)
    if json:
        print_json(result.to_dict())
    else:
        _print_attachment(result)


@data.command("import")
@click.argument("file")
@click.option("--net", help="The net of all runs.  [default: as the file says]")
@options.net_options
@collect(
    "importing",
    ImportOptions,
    click.option("--device", default="", help="Name of the device.  [default: as the file says]"),
    click.option("--source", default="", help="Name of the log.  [default: its tool or file]"),
    click.option("--covers", default="", help="What the joules include: gpu, board ..."),
    click.option(
        "--tool",
        type=click.Choice((AUTO, *TOOLS)),
        default=AUTO,
        help="Format of FILE.  [default: by its content]",
    ),
    click.option("--window", default="", help="Zeus: name of the windows that are runs."),
    options.steps,
    options.epochs,
    options.samples,
    options.from_,
)
@options.store
@options.json
def import_file(
    file: str, request: NetRequest, importing: ImportOptions, store: str | None, json: bool
) -> None:
    """Import measured runs from FILE, so that estimates learn from them.

    FILE is a CSV with the columns net, energy_j and duration_s (and steps, batch, precision ...),
    or a log of Zeus, CodeCarbon or Carbontracker. Importing it again adds nothing.
    """
    result = import_log(file, request, importing, store)
    if json:
        print_json(result.to_dict())
        return
    console = make_console()
    console.print(
        f"Imported {plural(result.runs, 'run')} of {result.device} from {result.source}, "
        f"{result.new} of them new."
    )
    if result.is_fitted:
        console.print(f"Next: joulecast estimate NET --device {result.device!r}", soft_wrap=True)


@data.command()
@click.argument("net")
@options.net_options
@click.option("--device", required=True, help="Device with imported runs.")
@click.option("--steps", type=click.IntRange(1), required=True, help="Steps of the run.")
@click.option("--source", default="", help="Whose runs.  [default: the only source]")
@collect("estimating", EstimateOptions, options.level, options.store)
@options.json
def predict(
    request: NetRequest,
    device: str,
    steps: int,
    source: str,
    estimating: EstimateOptions,
    json: bool,
) -> None:
    """Predict a whole run of NET, as the source of imported runs would report it.

    The overhead of a run (start-up, evaluation) and the spread of repeated runs are those of the
    source. `joulecast estimate` is about steps alone.
    """
    result = predict_net(request, device, steps, source, estimating)
    if json:
        print_json(result.to_dict())
    else:
        _print_prediction(result)


@data.command()
@click.argument("device")
@click.argument("file")
@click.option(
    "--format",
    "form",
    type=click.Choice(EXPORT_FORMATS),
    default=TIDY,
    show_default=True,
    help="One row per observation, or CodeCarbon's columns.",
)
@options.grid
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    help="Write a dataset of kernels, networks or applications instead, with a data card.",
)
@click.option("--licence", default="", metavar="TEXT", help="Licence of the data, for the card.")
@options.store
@options.json
def export(
    device: str, file: str, level: str | None, licence: str, json: bool, **rest: Any
) -> None:
    """Write the observations of DEVICE to FILE as CSV.

    With --level, FILE has one of the levels of DeepEn2023's dataset, energies and durations are
    those of one inference or training step, and a data card in Markdown is written beside it.
    """
    if level is not None:
        _export_level(DatasetRequest(device, file, level, licence, rest["store"]), json)
    elif licence:
        raise click.UsageError("--licence needs --level", click.get_current_context())
    else:
        _export_observations(device, file, json, **rest)


@dataclass(frozen=True)
class DatasetRequest:
    """What ``data export --level`` was asked for."""

    device: str
    file: str
    level: str
    licence: str
    store: str | None


def _export_level(request: DatasetRequest, json: bool) -> None:
    if options.is_typed("form") or options.is_typed("grid"):
        raise click.UsageError(
            "--level has its own columns: leave --format and --grid out",
            click.get_current_context(),
        )
    result = export_dataset(
        request.device, request.file, request.level, licence=request.licence, store=request.store
    )
    if json:
        print_json(result.to_dict())
        return
    left_out = f" {result.left_out:,} without energy were left out." if result.left_out else ""
    make_console().print(
        f"Wrote {plural(result.rows, 'observation')} to {result.file}, and a data card to "
        f"{result.card}.{left_out}"
    )


def _export_observations(
    device: str, file: str, json: bool, form: str, grid: str | None, store: str | None
) -> None:
    count = export_observations(device, file, form=form, grid=grid or "", store=store)
    if json:
        print_json({"file": file, "format": form, "observations": count})
    else:
        make_console().print(f"Wrote {plural(count, 'observation')} to {file}.")


def _print_prediction(result: RunPrediction) -> None:
    low_j, high_j = map(format_energy, result.interval_j)
    console = make_console()
    console.print(
        f"A run of {result.network} on {result.device}, {result.steps:,} steps, as {result.source} "
        f"reports it: {format_energy(result.energy_j)}{label_provenance('imported')} "
        f"({100 * result.level:g} % interval {low_j}–{high_j}), "
        f"{format_duration(result.duration_s)}."
    )
    console.print(f"Repeated runs differ by {format_share(result.repeat_sd_share)} (std. dev.).")
    if result.transferred_from:
        console.print(f"Transferred from {' and '.join(result.transferred_from)}.")


def _print_attachment(result: TraceAttachment) -> None:
    console = make_console()
    console.print(f"{plural(result.completed, 'observation')} of {result.device} got their energy.")
    rows = [
        (
            one.run,
            str(len(one.completed)),
            str(len(one.refused)),
            f"{found.offset_s:.3f} s" if found else "-",
            f"{1e6 * found.drift:.1f} ppm" if found else "-",
            format_duration(found.residual_s) if found else "-",
        )
        for one in result.runs
        for found in (one.alignment,)
    ]
    columns = ("run", ">completed", ">refused", ">offset", ">drift", ">residual")
    print_table(console, columns, rows)
    refused = [pair for one in result.runs for pair in one.refused]
    for observation, reason in refused[:_MOST_REASONS]:
        console.print(f"Refused: {observation.trial.network.name or 'idle device'}: {reason}.")
    if len(refused) > _MOST_REASONS:
        console.print(f"Refused: {len(refused) - _MOST_REASONS} more, see --json.")
    if result.pending:
        console.print(f"{plural(result.pending, 'observation')} still wait for a trace.")
    if result.is_fitted:
        console.print(f"Next: joulecast estimate NET --device {result.device}")
    else:
        console.print("These are too few to estimate networks: record more.")
