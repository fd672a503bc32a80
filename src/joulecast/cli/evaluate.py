"""``joulecast evaluate FAMILY``: evaluate estimators on held-out random nets."""

from __future__ import annotations

from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.interruptions import MEASUREMENTS_KEPT, report_interruption
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import ListType, NumberType
from joulecast.cli.output import OutputOptions, save_plots, write_result
from joulecast.cli.print_evaluation import print_evaluation
from joulecast.cli.progress import show_report
from joulecast.cli.terminal import Json
from joulecast.errors import MissingError
from joulecast.features.evaluate import evaluate_offline, make_evaluation_plan, run_evaluation
from joulecast.features.nets import NetRequest
from joulecast.features.options import EvaluateOptions, MeasureOptions
from joulecast.store import open_store
from joulecast.uses.evaluate import Evaluation


def make_evaluate_options(estimators: tuple[str, ...] | None, **rest: Any) -> EvaluateOptions:
    """Return the options of an evaluation from the values of options."""
    return EvaluateOptions(estimators or (), **rest)


class EstimatorListType(ListType):
    """Names of estimators separated by commas; all where none is given."""

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Return the names, each once."""
        return super().convert(value, param, ctx) if str(value).strip(", ") else ()


@click.command()
@click.argument("net", metavar="FAMILY")
@options.net_options
@options.measuring
@collect(
    "evaluating",
    make_evaluate_options,
    click.option(
        "--estimators",
        type=EstimatorListType(),
        metavar="NAME,NAME",
        help="Estimators; NAME-noprobe is NAME without probes.  [default: all]",
    ),
    click.option(
        "--nets", type=click.IntRange(1), default=20, show_default=True, help="Held-out nets."
    ),
    click.option(
        "--seconds",
        type=NumberType(0, min_open=True),
        default=60.0,
        show_default=True,
        help="Device time of each estimator's campaign.",
    ),
    click.option(
        "--seed", type=int, default=1, show_default=True, help="Seed that draws the nets."
    ),
    click.option("--offline", is_flag=True, help="Evaluate what is stored without measuring."),
)
@click.option("--device", default="", help="With --offline: the device whose profile is evaluated.")
@options.store
@options.plotted_output
def evaluate(
    request: NetRequest,
    measuring: MeasureOptions,
    evaluating: EvaluateOptions,
    device: str,
    store: str | None,
    output: OutputOptions,
) -> None:
    """Measure random nets of FAMILY and compare the estimators' predictions with them.

    The nets are measured before and after the estimators' campaigns. Each estimator learns from its
    own measurements only, never from these nets. Everything is stored at once: after an
    interruption, the same command resumes; with --offline a finished evaluation is computed again
    without a device.
    """
    if device and not evaluating.offline:
        raise click.UsageError("--device needs --offline", click.get_current_context())
    plan = make_evaluation_plan(request, evaluating)
    if evaluating.offline:
        result = evaluate_offline(plan, device, measuring, store)
    else:
        with report_interruption(MEASUREMENTS_KEPT), show_report() as tell:
            result = run_evaluation(plan, measuring, store, tell)
    if output.plot:
        _plot(result, output.plot)
    place = _find_store(store)
    data: Json = {**result.to_dict(), "store": place}
    write_result(output, data, lambda: print_evaluation(result, place, evaluating.offline))


def _find_store(store: str | None) -> str:
    with open_store(store, create=False) as opened:
        return str(opened.place)


def _plot(result: Evaluation, path: str) -> None:
    from joulecast.uses.evaluate.evaluation_plots import plot_evaluation

    if not any(net.estimates for net in result.nets):
        raise MissingError("no estimator could be evaluated, so there is nothing to plot yet")
    save_plots(path, plot_evaluation(result))
