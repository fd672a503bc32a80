"""Summarise the measurements of the test networks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from joulecast.kinds import network_work
from joulecast.records import Observation, Trial
from joulecast.uses.evaluate.evaluation import NetResult
from joulecast.uses.evaluate.evaluation_log import PASSES, EvaluationLog
from joulecast.uses.evaluate.evaluation_plan import EvaluationNets, EvaluationPlan


def summarise_test_nets(
    log: EvaluationLog, plan: EvaluationPlan, drawn: EvaluationNets
) -> tuple[list[NetResult], list[str]]:
    """Return the measured test networks, and a line for each pass that is incomplete."""
    passes = [_group_by_trial(log.list_for(role)) for role in PASSES]
    trials = drawn.make_trials(plan.setup)
    nets = [_summarise_net(trial, passes) for trial in trials]
    missing = []
    for number, windows in enumerate(passes):
        wanted = trials[: plan.count_nets(number)]
        count = sum(trial.key not in windows for trial in wanted)
        if count:
            missing.append(f"pass {number + 1} of {count} of {len(wanted)} test nets")
    return [net for net in nets if net is not None], missing


def _summarise_net(
    trial: Trial, passes: Sequence[dict[str, list[Observation]]]
) -> NetResult | None:
    """Return the median over the windows of each pass and the mean over passes."""
    measured = [windows[trial.key] for windows in passes if trial.key in windows]
    if not measured:
        return None
    passes_j = tuple(median(one.energy_j or 0.0 for one in windows) for windows in measured)
    durations_s = (median(one.duration_s or 0.0 for one in windows) for windows in measured)
    return NetResult(
        name=trial.network.name,
        passes_j=passes_j,
        measured_j=fmean(passes_j),
        measured_s=fmean(durations_s),
        flops=network_work(trial.network, trial.setup).total.flops,
    )


def _group_by_trial(observations: Iterable[Observation]) -> dict[str, list[Observation]]:
    groups: dict[str, list[Observation]] = {}
    for one in observations:
        groups.setdefault(one.trial.key, []).append(one)
    return groups
