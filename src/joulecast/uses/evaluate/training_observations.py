"""Select the observations that an estimator is fitted to in an evaluation.

Each estimator is fitted to its own campaign, cut at its budget, and to its probes of the test
networks. Energies of whole test networks are never among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from joulecast.estimators import find_estimator
from joulecast.estimators.base import Estimator
from joulecast.records import Network, Observation, Trial
from joulecast.uses.evaluate.campaign_budget import BudgetedEstimator, cut_to_budget, sum_work_s
from joulecast.uses.evaluate.evaluation_log import EvaluationLog
from joulecast.uses.evaluate.evaluation_plan import EvaluationNets, EvaluationPlan, name_campaign


@dataclass(frozen=True)
class TrainingObservations:
    """The observations that an estimator is fitted to.

    Attributes:
        campaign: Observations of its campaign within the budget, without test networks.
        probes: Its probes of the test networks.
        device_seconds: Device time of both.
        missing: What was not measured yet.
    """

    campaign: tuple[Observation, ...]
    probes: tuple[Observation, ...]
    device_seconds: float
    missing: tuple[str, ...] = ()


def find_training_observations(
    log: EvaluationLog, plan: EvaluationPlan, nets: EvaluationNets, name: str
) -> TrainingObservations:
    """Return the stored observations for an estimator, and what is missing."""
    role = name_campaign(name)
    estimator = BudgetedEstimator(find_estimator(role), plan.get_seconds(role))
    recorded = log.list_for(role)
    within = cut_to_budget(recorded, plan.get_seconds(role))
    target = nets.make_target(plan.setup, nets.campaign)
    target = replace(target, modes=_list_modes(recorded))
    is_incomplete = estimator.propose(target, recorded).trial is not None
    missing = [_describe_rest(role, plan, within)] if is_incomplete else []
    probes: tuple[Observation, ...] = ()
    if name == role:
        wanted, probes = find_probes(log, plan, nets, estimator)
        absent = {trial.key for trial in wanted} - {one.trial.key for one in probes}
        if absent:
            missing.append(f"{len(absent)} of {len(wanted)} time probes of {role}")
    device_seconds = sum(one.cost_s for one in (*within, *probes))
    campaign = _exclude_networks(within, nets.test)
    return TrainingObservations(campaign, probes, device_seconds, tuple(missing))


def find_probes(
    log: EvaluationLog,
    plan: EvaluationPlan,
    nets: EvaluationNets,
    estimator: Estimator,
    modes: Iterable[str] = (),
) -> tuple[tuple[Trial, ...], tuple[Observation, ...]]:
    """Return the time probes that an estimator needs, and its stored probes.

    Args:
        log: Stored observations.
        plan: What is evaluated.
        nets: Its networks.
        estimator: The estimator.
        modes: Ways to run a step that the device offers; by default those of the observations.
    """
    stored = log.list_for(f"{estimator.name}.probe")
    campaign = _list_campaign(log, plan, nets, estimator.name)
    known_modes = tuple(modes) or _list_modes((*campaign, *stored))
    target = nets.make_target(plan.setup, nets.test)
    target = replace(target, modes=known_modes, acquisition="probe")
    wanted = {trial.key: trial for trial in estimator.propose(target, campaign).probes}
    found = [
        one for one in stored if one.trial.key in wanted or _is_more_than_time(one, known_modes)
    ]
    return tuple(wanted.values()), tuple(found)


def list_observations(
    log: EvaluationLog, plan: EvaluationPlan, nets: EvaluationNets, name: str
) -> tuple[Observation, ...]:
    """Return the observations of an estimator's campaign and its probes so far."""
    return (*_list_campaign(log, plan, nets, name), *log.list_for(f"{name}.probe"))


def _list_campaign(
    log: EvaluationLog, plan: EvaluationPlan, nets: EvaluationNets, name: str
) -> tuple[Observation, ...]:
    within = cut_to_budget(log.list_for(name), plan.get_seconds(name))
    return _exclude_networks(within, nets.test)


def _exclude_networks(
    observations: Iterable[Observation], networks: Iterable[Network]
) -> tuple[Observation, ...]:
    """Return the observations of other networks: a variant may equal a test network."""
    excluded = set(networks)
    return tuple(one for one in observations if one.trial.network not in excluded)


def _is_more_than_time(observation: Observation, modes: Sequence[str]) -> bool:
    """Return whether a probe measured energy, or how long the host takes to issue a layer."""
    shows_issue_time = "graph" in modes and observation.trial.mode == "eager"
    return observation.energy_j is not None or shows_issue_time


def _list_modes(observations: Iterable[Observation]) -> tuple[str, ...]:
    """Return the ways to run a step that appear in the observations."""
    return tuple(dict.fromkeys(["eager", *(one.trial.mode for one in observations)]))


def _describe_rest(role: str, plan: EvaluationPlan, within: Sequence[Observation]) -> str:
    if not within:
        return f"the campaign of {role}"
    used = f"{sum_work_s(within):.0f} s of {plan.get_seconds(role):.0f} s"
    return f"the rest of the campaign of {role} ({used} measured)"
