"""Fig. 2: energy of networks with 0, 1, 2 ... equal convolutions, and NeuralPower's sum.

    [input, output], [input, hidden, output], [input, hidden, hidden, output] ...

NeuralPower profiles forward, backward and update of each layer separately, and adds them up. Its
stages are measured here at exactly the sizes of the layers, so that no regression adds an error:
once with several copies side by side, as the estimator ``neuralpower`` does, and once alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from joulecast.errors import MissingError
from joulecast.figures import Caption, LayerStack, Plot, plot_layer_stacks
from joulecast.records import Observation, Setup, Trial
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.laboratory import Laboratory, sum_cost_s
from joulecast.uses.reproduce.paper_settings import (
    PAPER_BATCH,
    TRIAL_S,
    PaperSettings,
    make_paper_setup,
)
from joulecast.uses.reproduce.small_networks import make_stack
from joulecast.uses.reproduce.statistics import compute_errors_percent, fit_line
from joulecast.variants import Part, make_isolated_trial, match_precision, split_network

ROLE, STAGE_ROLE = "fig2", "fig2.stages"
LEAST_R_SQUARED = 0.98
_ROUNDS = 2
_STAGES = ("forward", "backward", "update")
_COPIES, _ALONE = "neuralpower", "neuralpower, one copy"


@dataclass(frozen=True)
class StackSetting:
    """Equal convolutions of some channels, and how networks of them are trained."""

    channels: int
    setup: Setup
    title: str


def list_stacks(settings: PaperSettings) -> tuple[StackSetting, ...]:
    """Return what is stacked: the paper's batch, and on a GPU also one that keeps it busy."""
    setup = make_paper_setup(is_gpu=settings.is_gpu)
    small = StackSetting(16, setup, f"batch {PAPER_BATCH}, 16 channels")
    if not settings.is_gpu:
        return (small,)
    busy = Setup(batch=512, precision="tf32")
    return (small, StackSetting(64, busy, "batch 512, 64 channels, TF32"))


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the stacked networks and NeuralPower's stages."""
    stacks = list_stacks(settings)
    count = sum(len(_list_trials(settings, stack)) for stack in stacks)
    stages = sum(len(_list_stage_trials(stack)) for stack in stacks)
    return (
        PlannedWork("stacked convolutions", count, TRIAL_S * _ROUNDS * count),
        PlannedWork("stages for neuralpower", stages, TRIAL_S * stages),
    )


def measure(lab: Laboratory) -> None:
    """Measure the stacked networks, then the stages of their layers."""
    stacks = list_stacks(lab.settings)
    lab.measure([t for one in stacks for t in _list_trials(lab.settings, one)], ROLE, _ROUNDS)
    lab.measure([t for one in stacks for t in _list_stage_trials(one)], STAGE_ROLE)


def analyse(lab: Laboratory) -> Findings:
    """Fit a line to each stack and compare it with NeuralPower's sums."""
    stacks = [_analyse_stack(lab, one) for one in list_stacks(lab.settings)]
    is_linear = all(one["r_squared"] >= LEAST_R_SQUARED for one in stacks)
    sums = [min(one["errors_percent"][_COPIES], default=-1.0) for one in stacks]
    is_above = all(least > 0 for least in sums)
    parts = []
    for one in stacks:
        errors = one["errors_percent"]
        parts.append(
            f"{one['title']}: R² = {one['r_squared']:.4f}, {1000 * one['slope_j']:.3g} mJ per "
            f"layer (increments vary by {one['increment_sd_percent']:.0f} %), NeuralPower's sum "
            f"{fmean(errors[_COPIES]):+.0f} % ({fmean(errors[_ALONE]):+.0f} % with one copy)"
        )
    finding = (
        f"Energy {'grew' if is_linear else 'did not grow'} linearly, and NeuralPower "
        f"{'overestimated' if is_above else 'did not always overestimate'}. {'; '.join(parts)}."
    )
    observations = (*lab.list_role(ROLE), *lab.list_role(STAGE_ROLE))
    verdict = HELD if is_linear and is_above else NOT_HELD
    return Findings(verdict, finding, {"stacks": stacks}, sum_cost_s(observations))


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw one panel per stack."""
    result = results[0]
    stacks = [
        LayerStack(
            f"{one['title']}: R² = {one['r_squared']:.4f}",
            tuple(one["counts"]),
            tuple(one["energies_j"]),
            tuple(one["lows_j"]),
            tuple(one["highs_j"]),
            (one["line_j"][0], one["line_j"][-1]),
            {name: tuple(energies) for name, energies in one["estimates_j"].items()},
        )
        for one in result.numbers["stacks"]
    ]
    subtitle = f"3 x 3 convolutions between input and output layer, 28 x 28, {result.device.name}"
    caption = Caption("Fig. 2: equal convolutions, one by one", subtitle, result.provenance)
    return plot_layer_stacks(stacks, caption)


def _list_counts(settings: PaperSettings) -> range:
    return range(settings.choose(9, 5))


def _list_trials(settings: PaperSettings, stack: StackSetting) -> list[Trial]:
    counts = _list_counts(settings)
    return [Trial(make_stack(count, stack.channels), stack.setup) for count in counts]


def _list_parts(stack: StackSetting) -> tuple[Part, Part, Part]:
    """Return the input, a hidden and the output layer, without the flatten, which costs nothing."""
    placed = split_network(make_stack(2, stack.channels))
    first, hidden, _, output = (one.part for one in placed)
    return first, hidden, output


def _list_part_stages(stack: StackSetting, is_alone: bool) -> list[list[Trial]]:
    """Return the trials of all stages of the input, a hidden and the output layer."""
    parts = []
    for part in _list_parts(stack):
        part = match_precision(part, stack.setup)
        trials = [make_isolated_trial(part, stack.setup, stage=name) for name in _STAGES]
        parts.append([_run_alone(trial) for trial in trials] if is_alone else trials)
    return parts


def _list_stage_trials(stack: StackSetting) -> list[Trial]:
    both = (_list_part_stages(stack, is_alone) for is_alone in (False, True))
    return [trial for parts in both for trials in parts for trial in trials]


def _run_alone(trial: Trial) -> Trial:
    return replace(trial, execution=replace(trial.execution, copies=1))


def _analyse_stack(lab: Laboratory, stack: StackSetting) -> dict[str, Any]:
    trials = _list_trials(lab.settings, stack)
    found = lab.find(trials, ROLE)
    rows = [
        (count, [_per_step_j(one) for one in found[trial.key]])
        for count, trial in zip(_list_counts(lab.settings), trials, strict=True)
        if found[trial.key]
    ]
    if len(rows) < 3:
        raise MissingError(f"only {len(rows)} networks of {stack.title} were measured")
    counts = [float(count) for count, _ in rows]
    energies_j = [median(values) for _, values in rows]
    line = fit_line(counts, energies_j)
    increments_j = [
        (after - before) / (b - a)
        for (a, before), (b, after) in pairwise(zip(counts, energies_j, strict=True))
    ]
    mean_j = fmean(increments_j)
    sd_j = fmean((one - mean_j) ** 2 for one in increments_j) ** 0.5
    estimates_j = {
        name: sums
        for name, is_alone in ((_COPIES, False), (_ALONE, True))
        if (sums := _sum_stages(lab, stack, counts, is_alone))
    }
    if len(estimates_j) < 2:
        raise MissingError(f"NeuralPower's stages of {stack.title} were not measured")
    return {
        "title": stack.title,
        "counts": counts,
        "energies_j": energies_j,
        "lows_j": [min(values) for _, values in rows],
        "highs_j": [max(values) for _, values in rows],
        "line_j": [line.predict(count) for count in counts],
        "offset_j": line.offset,
        "slope_j": line.slope,
        "r_squared": line.r_squared,
        "increments_j": increments_j,
        "increment_sd_percent": 100 * sd_j / abs(mean_j) if mean_j else 0.0,
        "estimates_j": estimates_j,
        "errors_percent": {
            name: compute_errors_percent(sums, energies_j) for name, sums in estimates_j.items()
        },
    }


def _sum_stages(
    lab: Laboratory, stack: StackSetting, counts: Sequence[float], is_alone: bool
) -> list[float]:
    """Return NeuralPower's sum for each number of hidden layers; nothing if a stage is missing."""
    costs_j = []
    for trials in _list_part_stages(stack, is_alone):
        found = lab.find(trials, STAGE_ROLE)
        if not all(found.values()):
            return []
        costs_j.append(sum(median(map(_per_step_j, seen)) for seen in found.values()))
    first_j, hidden_j, output_j = costs_j
    return [first_j + count * hidden_j + output_j for count in counts]


def _per_step_j(observation: Observation) -> float:
    execution = observation.trial.execution
    return (observation.energy_j or 0.0) / execution.steps / execution.copies


STACKED_LAYERS = Experiment(
    "fig2",
    "Equal convolutions, added one by one",
    "Each further equal convolution adds about the same energy, so that energy grows linearly with "
    "the number of layers; NeuralPower, which adds up separately profiled stages, overestimates.",
    f"A straight line explains at least {100 * LEAST_R_SQUARED:g} % of the variance (R²), and the "
    "sum of NeuralPower's stages is above the measured energy at every number of layers.",
    plan,
    measure,
    analyse,
    draw,
)
