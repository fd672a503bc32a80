"""``joulecast prune NET``: prune a net to an energy budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.interruptions import MEASUREMENTS_KEPT, report_interruption
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import ShareType
from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.print_pruning import PruningReport, print_pruning
from joulecast.cli.progress import show_activity
from joulecast.cli.terminal import Json
from joulecast.errors import FileError
from joulecast.features.nets import NetRequest
from joulecast.features.options import MeasureOptions, PruneOptions
from joulecast.features.profiles import load_profile
from joulecast.features.prune import (
    PrunedNet,
    PruneTask,
    check_can_prune,
    check_same_device,
    is_within_budget,
    make_probe,
    measure_both,
    prune_net,
)
from joulecast.records import Observation, Setup, describe_inference
from joulecast.uses.prune import parse_pruning_budget
from joulecast.uses.prune_options import IMPORTANCES, OBJECTIVES, STRATEGY_NAMES


class FloorType(ShareType):
    """What remains of a group of channels: a share as ``10%`` or ``0.1``, or a number as ``8``."""

    name = "floor"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the share, or the number as a float of at least 1."""
        text = str(value).strip()
        return float(text) if text.isdigit() else super().convert(value, param, ctx)


@dataclass(frozen=True)
class PruneActions:
    """Where estimates come from, and what is done besides pruning.

    Attributes:
        device: Device whose profile is used.
        probe: Measure remaining layers on the device, and choose again.
        measure: Measure the original and the pruned net.
        save: Folder that receives the pruned model.
        store: Path or URL of the store.
    """

    device: str
    probe: bool
    measure: bool
    save: str | None
    store: str | None


@click.command()
@click.argument("net")
@options.net_options
@options.budget
@collect(
    "pruning",
    PruneOptions,
    click.option(
        "--strategy",
        type=click.Choice(STRATEGY_NAMES),
        default="marginal",
        show_default=True,
        help="How channels are chosen.",
    ),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        default="energy",
        show_default=True,
        help="Quantity to minimise; flops is for comparison.",
    ),
    options.confidence,
    click.option(
        "--importance",
        type=click.Choice(IMPORTANCES),
        default="magnitude",
        show_default=True,
        help="How channels are ranked.",
    ),
    click.option(
        "--floor",
        type=FloorType(),
        default="10%",
        show_default=True,
        metavar="10%|8",
        help="Share or number of channels that remain in every group.",
    ),
    click.option(
        "--keep",
        multiple=True,
        metavar="LAYER",
        help="Layers not to prune, like 'fc*'; repeatable.",
    ),
    click.option(
        "--multiple",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        metavar="N",
        help="Round channel counts to a multiple of N.",
    ),
    options.seed,
    options.estimator,
)
@collect(
    "actions",
    PruneActions,
    options.device,
    click.option(
        "--probe",
        is_flag=True,
        help="Measure the remaining layers on the device --on, and choose again.",
    ),
    click.option("--measure", is_flag=True, help="Measure both nets on the device --on."),
    click.option("--save", metavar="FOLDER", help="Write the pruned model: weights and structure."),
    options.store,
)
@options.probing
@options.output
def prune(
    request: NetRequest,
    budget: options.RunBudget,
    pruning: PruneOptions,
    actions: PruneActions,
    measuring: MeasureOptions,
    output: OutputOptions,
) -> None:
    """Remove the least important channels of NET until a step stays within a budget.

    Channels that depend on each other are removed together, so that the pruned net still runs and
    trains. No channel is removed that saves nothing.
    """
    check_can_prune()
    net, setup = request.resolve()
    length = budget.length
    steps = length.count_steps(setup.samples_per_step) if length.is_run else None
    limit = parse_pruning_budget(budget.text, length, setup.samples_per_step)
    _check_options(pruning, actions)
    if actions.save:
        make_folder(actions.save)
    task = PruneTask(net, setup, limit, pruning, request.name)
    kept = MEASUREMENTS_KEPT if actions.probe else ""
    with report_interruption(kept), show_activity("choosing channels, minutes for large nets"):
        pruned = _prune(task, actions, measuring)
    measured = measure_both(pruned, setup, measuring) if actions.measure else None
    place = pruned.save(actions.save) if actions.save else ""
    report = PruningReport(pruned, setup, measured, place, steps)
    write_result(output, describe_pruning(report), lambda: print_pruning(report))


def describe_pruning(report: PruningReport) -> Json:
    """Return a pruning as JSON values."""
    result = report.pruned.pruning
    data: Json = {**result.to_dict(), "steps": report.steps, "saved": report.place or None}
    for name, one in (("before", result.before), ("after", result.after)):
        if one is not None:
            data[name].update(describe_inference(report.setup, one.energy_j, one.duration_s))
    if report.measured is not None:
        before, after = report.measured
        data["measured"] = {
            "before": _describe_observation(before, report.setup),
            "after": _describe_observation(after, report.setup),
            "share": (after.energy_j or 0.0) / (before.energy_j or 1.0),
            "within_budget": is_within_budget(result.budget, before, after),
        }
    return data


def make_folder(folder: str) -> None:
    """Create the folder of a model, so that an error appears before the work is done.

    Raises:
        FileError: It cannot be created.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot create {folder} ({error.strerror}): give another folder to --save"
        ) from error


def _prune(task: PruneTask, actions: PruneActions, measuring: MeasureOptions) -> PrunedNet:
    probe = make_probe(task.setup, measuring, actions.store) if actions.probe else None
    profile = (
        probe((task.net.network,))
        if probe
        else load_profile(actions.device, on=measuring.on, store=actions.store)
    )
    if actions.measure:
        check_same_device(profile, measuring)
    return prune_net(task, profile, probe)


def _check_options(pruning: PruneOptions, actions: PruneActions) -> None:
    default = PruneOptions()
    is_default = pruning.objective == "energy" and pruning.estimator == default.estimator
    if actions.probe and (actions.device or not is_default):
        raise click.UsageError(
            "--probe uses the device --on: leave out --device, --objective and --estimator"
        )
    if pruning.objective == "flops" and pruning.confidence != default.confidence:
        raise click.UsageError(
            "FLOPs are counted, not estimated: leave --confidence out, or use --objective energy"
        )


def _describe_observation(observation: Observation, setup: Setup) -> Json:
    keys = ("energy_j", "energy_sd_j", "duration_s", "count", "meter", "covers", "provenance")
    return {
        **{key: getattr(observation, key) for key in keys},
        **describe_inference(setup, observation.energy_j, observation.duration_s),
    }
