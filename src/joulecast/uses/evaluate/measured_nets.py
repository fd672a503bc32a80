"""What the test nets really took: medians over the windows of each pass, and the mean of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from joulecast.kinds import network_work
from joulecast.records import Observation, Trial
from joulecast.uses.evaluate.evaluation import NetResult
from joulecast.uses.evaluate.evaluation_log import PASSES, EvaluationLog
from joulecast.uses.evaluate.evaluation_plan import EvaluationNets, EvaluationPlan


def summarise_test_nets(
    book: EvaluationLog, plan: EvaluationPlan, draw: EvaluationNets
) -> tuple[list[NetResult], list[str]]:
    """The test nets that were measured, and in words what was not."""
    windows = [_group(book.list_of(who)) for who in PASSES]
    trials = draw.make_trials(plan.setup)
    nets = [_see_net(trial, windows) for trial in trials]
    missing = []
    for place, seen in enumerate(windows, start=1):
        lacking = sum(trial.key not in seen for trial in trials)
        if lacking:
            missing.append(f"pass {place} of {lacking} of {len(trials)} test nets")
    return [net for net in nets if net is not None], missing


def _see_net(trial: Trial, windows: Sequence[dict[str, list[Observation]]]) -> NetResult | None:
    """A test net's medians over the windows of each pass, and their mean."""
    seen = [found[trial.key] for found in windows if trial.key in found]
    if not seen:
        return None
    passes_j = tuple(median(one.energy_j or 0.0 for one in found) for found in seen)
    return NetResult(
        name=trial.network.name,
        passes_j=passes_j,
        measured_j=fmean(passes_j),
        measured_s=fmean(median(one.duration_s or 0.0 for one in found) for found in seen),
        flops=network_work(trial.network, trial.setup).total.flops,
    )


def _group(observations: Iterable[Observation]) -> dict[str, list[Observation]]:
    groups: dict[str, list[Observation]] = {}
    for seen in observations:
        groups.setdefault(seen.trial.key, []).append(seen)
    return groups
