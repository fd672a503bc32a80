"""``joulecast plan jobs.toml``: plan which job runs when on which device."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import NumberType, ParamType, ShareType
from joulecast.cli.output import OutputOptions, save_plots, write_result
from joulecast.cli.print_plan import print_plan
from joulecast.features.options import LEAST_PLAN_CONFIDENCE, PlanOptions
from joulecast.features.plan import make_plan


class TimeType(ParamType):
    """A date and time; local without a time zone."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        """Return the time."""
        try:
            return datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time: give one like 2030-05-01T22:00", param, ctx)


def make_plan_options(time_limit: float, **rest: Any) -> PlanOptions:
    """Return the options of a plan from the values of options."""
    return PlanOptions(time_limit_s=time_limit, **rest)


@click.command()
@click.argument("jobs", metavar="JOBS.TOML")
@collect(
    "planning",
    make_plan_options,
    click.option(
        "--confidence",
        type=ShareType(least=LEAST_PLAN_CONFIDENCE),
        default="50%",
        show_default=True,
        help="Plan with energies and times that each job stays below with this probability.",
    ),
    click.option(
        "--time-limit",
        type=NumberType(0.1),
        default=60.0,
        show_default=True,
        help="Seconds to search; then the best plan so far is used, with a bound on the optimum.",
    ),
    click.option("--now", type=TimeType(), metavar="TIME", help="Plan as if it were this time."),
    options.estimator,
    options.store,
)
@options.plotted_output
def plan(jobs: str, planning: PlanOptions, output: OutputOptions) -> None:
    """Plan which job runs when on which device, with the least total energy.

    Every deadline is met and no battery falls below its reserve. JOBS.TOML holds [[job]] tables
    (name, net, steps, release, deadline ...) and [[device]] tables (name, profile, battery_wh,
    charge, reserve, charging ...).
    """
    result = make_plan(jobs, planning)
    has_jobs = bool(result.solution.schedule)
    if output.plot and has_jobs:
        from joulecast.uses.plan.plan_plot import plot_plan

        save_plots(output.plot, [plot_plan(result)])
    plot = output.plot if has_jobs else None
    write_result(output, result.to_dict(), lambda: print_plan(result, plot))
