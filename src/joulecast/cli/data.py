"""``joulecast data``: joules that come later, and data of other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from joulecast.cli import options
from joulecast.cli.terminal import make_console, plural, print_json, print_table
from joulecast.units import format_duration

if TYPE_CHECKING:
    from joulecast.api.data import TraceAttachment

# Reasons are often the same for many trials.
_MOST_REASONS = 10


@click.group()
@click.pass_context
def data(ctx: click.Context) -> None:
    """Attach power traces to recorded campaigns."""
    # Settings of [data] apply to each of its commands.
    ctx.default_map = dict.fromkeys(data.commands, ctx.default_map)


@data.command()
@click.argument("trace")
@click.option("--device", default="", help="Device of the recordings.  [default: the only one]")
@click.option("--run", default="", help="Only this run of Joulecast.  [default: all of them]")
@options.estimator
@options.store
@options.json
def attach(
    trace: str, device: str, run: str, estimator: str, store: str | None, json: bool
) -> None:
    """Fill in joules from TRACE, a CSV file of time and power.

    For campaigns that were recorded with --meter later. Load pulses are found in the trace, its
    clock is aligned with that of the run, and the power in each window is integrated. What the
    trace does not cover stays as it was.
    """
    from joulecast.api.data import attach_trace

    result = attach_trace(trace, device=device, run=run, estimator=estimator, store=store)
    if json:
        print_json(result.to_dict())
    else:
        _print_attachment(result)


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
