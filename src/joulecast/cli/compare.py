"""``joulecast compare NET``: rank devices and setups by energy and duration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import click

from joulecast.budgets import RunLength
from joulecast.cli import options
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import CountListType, ListType
from joulecast.cli.output import OutputOptions, save_plots, write_result
from joulecast.cli.print_comparison import compute_row_totals, print_comparison
from joulecast.cli.terminal import Json
from joulecast.errors import MissingError
from joulecast.features.compare import SetupGrid, compare_setups
from joulecast.features.nets import NetRequest, Shape
from joulecast.features.options import EstimateOptions, GpuCounts
from joulecast.features.profiles import find_profiles
from joulecast.features.run import Bill, make_bill
from joulecast.records import OPTIMIZERS, PRECISIONS
from joulecast.uses.compare import Comparison

# Samples that totals are printed for where a price or grid is given without --samples.
_DEFAULT_SAMPLES = 1_000_000


@dataclass(frozen=True)
class SampleOptions:
    """Samples whose totals are printed, and in which units."""

    epochs: int | None
    samples: int | None
    grid: str | None
    price: str | None

    def make_bill(self) -> Bill | None:
        """Return the bill of all samples; None where none is requested."""
        if self.epochs is not None and self.samples is None:
            raise click.UsageError("--epochs needs --samples", click.get_current_context())
        if not any((self.samples, self.grid, self.price)):
            return None
        length = RunLength(None, self.epochs or 1, self.samples or _DEFAULT_SAMPLES)
        return make_bill(length.count_steps(batch=1), self.grid, self.price)


def make_setup_grid(
    batch: tuple[int, ...] | None,
    threads: tuple[int, ...] | None,
    processor: tuple[str, ...] | None,
    accumulate: tuple[int, ...] | None,
    inference: bool,
    **setup: Any,
) -> SetupGrid:
    """Return the grid of setups from the values of options."""
    fixed = {**setup, **options.choose_phase(inference)}
    fixed["compiled"] = (fixed["compiled"],)
    if inference:
        fixed["optimizer"] = (fixed["optimizer"],)
    return SetupGrid(
        batch or (),
        threads=threads or (0,),
        processor=processor or ("",),
        accumulate=accumulate or (1,),
        **fixed,
    )


@dataclass(frozen=True)
class DeviceChoice:
    """Devices to compare by name, this machine where empty, and how many of each train together."""

    devices: tuple[str, ...]
    gpus: GpuCounts


def make_device_choice(
    devices: tuple[str, ...] | None,
    gpus: tuple[int, ...] | None,
    parallel: str,
    link_gb_s: float | None,
) -> DeviceChoice:
    """Return the devices and numbers of GPUs from the values of options."""
    options.check_gpus(gpus, parallel, link_gb_s)
    return DeviceChoice(devices or (), GpuCounts(gpus or (1,), parallel, link_gb_s))


def make_net_request(input: Shape | None, checkpoint: bool) -> NetRequest:
    """Return a request from the values of options; the net and its phase are filled in later."""
    return NetRequest(None, input_shape=input, checkpoint=checkpoint)


@click.command()
@click.argument("net")
@collect(
    "choice",
    make_device_choice,
    click.option(
        "--devices",
        type=ListType(),
        metavar="NAME,NAME",
        help="Devices with profiles, see `joulecast profiles list`, or of `joulecast devices`; "
        "all for every one.  [default: this machine]",
    ),
    click.option(
        "--gpus",
        type=CountListType(),
        metavar="1,4,8",
        help="Numbers of GPUs that train together; --batch is that of each.  [default: 1]",
    ),
    options.parallel,
    options.link_gb_s,
)
@collect(
    "setups",
    make_setup_grid,
    click.option(
        "--batch",
        type=CountListType(),
        metavar="8,16,32",
        help="Batch sizes.  [default: the net's own; 1 with --inference]",
    ),
    click.option(
        "--precision",
        type=ListType(PRECISIONS),
        default="fp32",
        show_default=True,
        metavar="fp32,bf16",
        help=f"Number formats: {', '.join(PRECISIONS)}.",
    ),
    click.option(
        "--optimizer",
        type=ListType(OPTIMIZERS),
        default="sgd",
        show_default=True,
        metavar="sgd,adamw",
        help=f"Optimizers: {', '.join(OPTIMIZERS)}.",
    ),
    options.loss,
    click.option(
        "--threads",
        type=CountListType(),
        metavar="1,2,4",
        help="Numbers of CPU threads.  [default: all]",
    ),
    click.option(
        "--processor",
        type=ListType(),
        metavar="NAME,NAME",
        help="Processors of the device, as its runtime says.",
    ),
    click.option(
        "--accumulate",
        type=CountListType(),
        metavar="1,4",
        help="Numbers of batches per update.  [default: 1]",
    ),
    options.compiled,
    options.cuda_graphs,
    options.inference,
)
@collect("request", make_net_request, options.input_shape, options.checkpoint)
@options.estimating
@collect(
    "totals",
    SampleOptions,
    click.option("--epochs", type=click.IntRange(1), help="Passes over --samples."),
    click.option("--samples", type=click.IntRange(1), help="Also print the totals of N samples."),
    options.grid,
    options.price,
)
@options.plotted_output
def compare(
    net: str,
    choice: DeviceChoice,
    setups: SetupGrid,
    request: NetRequest,
    estimating: EstimateOptions,
    totals: SampleOptions,
    output: OutputOptions,
) -> None:
    """Rank devices, batch sizes, precisions and optimizers by the energy of a sample of NET.

    With --inference NET is run, not trained. Every combination is estimated, none is run.
    Combinations that no other one beats in both energy and time are on the Pareto front. Those that
    cannot be compared are listed with the reason; if that is all of them, the exit code is 1.
    """
    # Parsed first, so that a wrong price or grid is reported before anything is estimated.
    bill = totals.make_bill()
    request = replace(request, net=net, setup_options={"phase": setups.phase})
    resolved, _ = request.resolve()
    profiles = find_profiles(choice.devices, estimating.store)
    grid = setups.list_setups(resolved.batch)
    comparison = compare_setups(resolved, profiles, grid, estimating, choice.gpus)
    if output.plot:
        from joulecast.uses.compare.comparison_plot import plot_comparison

        save_plots(output.plot, {"comparison": plot_comparison(comparison)})
    data = _describe_comparison(comparison, bill)
    write_result(output, data, lambda: print_comparison(comparison, bill))
    if not comparison.groups:
        reasons = dict.fromkeys(row.reason for row in comparison.unranked)
        raise MissingError(f"nothing could be ranked ({'; '.join(reasons)})")


def _describe_comparison(comparison: Comparison, bill: Bill | None) -> Json:
    data = comparison.to_dict()
    rows = zip(data["rows"], comparison.rows, strict=True)
    data["rows"] = [{**one, **compute_row_totals(row, bill)} for one, row in rows]
    return {**data, **({"samples": bill.count} if bill else {})}
