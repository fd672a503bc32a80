"""``joulecast reproduce fig2 ... table1 | all``: run the paper's experiments on a device."""

from __future__ import annotations

from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.interruptions import MEASUREMENTS_KEPT, report_interruption
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import NumberType, RepeatedOption
from joulecast.cli.print_reproduction import (
    make_plan_data,
    make_result_data,
    print_plan,
    print_results,
)
from joulecast.cli.progress import show_report
from joulecast.cli.terminal import print_json
from joulecast.features.options import MeasureOptions
from joulecast.features.reproduce import (
    DEFAULT_FOLDER,
    ReproduceOptions,
    plan_reproduction,
    run_experiments,
)

measuring = collect("measuring", MeasureOptions, options.on, options.meter, options.device_name)


def make_reproduce_options(beside: tuple[str, ...], **rest: Any) -> ReproduceOptions:
    """Return the options of experiments from the values of options."""
    return ReproduceOptions(beside=tuple(beside), **rest)


@click.command()
@click.argument("experiments", nargs=-1, metavar="EXPERIMENT...")
@measuring
@collect(
    "running",
    make_reproduce_options,
    click.option(
        "--out",
        default=DEFAULT_FOLDER,
        show_default=True,
        metavar="FOLDER",
        help="Folder of observations, results and pictures.",
    ),
    click.option("--quick", is_flag=True, help="Fewer networks and less device time."),
    click.option(
        "--until-s",
        type=NumberType(0, min_open=True),
        metavar="SECONDS",
        help="Measure nothing more after this time.",
    ),
    click.option(
        "--measure-only", is_flag=True, help="Leave analysing and drawing to a later run."
    ),
    click.option("--redraw", is_flag=True, help="Use what FOLDER holds, without a device."),
    click.option(
        "--faithful",
        is_flag=True,
        help="The paper's algorithm without our deviations, and 500 steps a measurement.",
    ),
    click.option(
        "--celeba",
        default="",
        metavar="FOLDER",
        help="CelebA's images and attributes for fig13, instead of drawn faces.",
    ),
    click.option(
        "--beside",
        cls=RepeatedOption,
        metavar="FOLDER",
        help="Also draw the results of another device; several times for several.",
    ),
)
@click.option("--dry-run", is_flag=True, help="List what would be measured, and how long it takes.")
@options.json
def reproduce(
    experiments: tuple[str, ...],
    measuring: MeasureOptions,
    running: ReproduceOptions,
    dry_run: bool,
    json: bool,
) -> None:
    """Run experiments of the AMPERE paper: fig2 ... fig13, table1, or all of them.

    Each one measures networks, draws the figure of the paper from them, and says whether the
    paper's statement held on this device. Every observation is kept in FOLDER at once: after an
    interruption, the same command continues.
    """
    if dry_run:
        plan = plan_reproduction(experiments, measuring, running)
        if json:
            print_json(make_plan_data(plan))
        else:
            print_plan(plan)
        return
    with report_interruption(MEASUREMENTS_KEPT), show_report() as tell:
        outcome = run_experiments(experiments, measuring, running, tell)
    if json:
        print_json(make_result_data(outcome))
    else:
        print_results(outcome, running)
