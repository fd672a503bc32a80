"""Evaluate estimators on stored observations of random networks, without a device.

    test networks ─pass 1─▶ campaign and probes of each estimator ─▶ pass 2 ─▶ fit, predict, score

The reference energy of a network is the mean of two passes at different times; their difference is
the noise. No estimator learns from the energy of a test network: each is fitted to its own
campaign, cut at its budget, and to its probes of the test networks.

Networks are distinct and drawn as their family says; in the paper, each parameter is uniform in
1..original. The networks that campaigns may measure are drawn first and from their own seed, so
that asking for more test networks later changes neither them nor the existing test networks.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any

import numpy as np

from joulecast.estimators import find_estimator
from joulecast.estimators.base import Estimator, Fitted, Proposal, Target
from joulecast.families import FAMILIES, IMAGE_FAMILIES, count_members, draw_family, make_family
from joulecast.features.evaluate import EstimatorScore, Evaluation, Interval, NetEstimate, NetResult
from joulecast.gp.lognormal import lognormal_interval
from joulecast.operators import network_work
from joulecast.records import Network, Observation, Profile, Setup, Trial, stable_hash
from joulecast.system.errors import InputError, MissingError, NetError, arg

Json = dict[str, Any]
Shape = tuple[int, ...]

NO_PROBE = "-noprobe"
"""Suffix of an estimator's name: without probes of the test networks."""
PASSES = ("test1", "test2")
"""Roles of the two passes over the test networks."""
CAMPAIGN_NETS = 24


def evaluate_stored(
    profile: Profile, plan: EvaluationPlan, left_out: Sequence[str] = ()
) -> Evaluation:
    """Evaluate estimators on the observations of a profile.

    ``left_out`` names the trials that are known to have failed, with the reason.
    """
    log = EvaluationLog(name_evaluation(plan, profile.key), profile.observations)
    drawn = draw_nets(plan)
    nets, missing = summarise_test_nets(log, plan, drawn)
    if not nets:
        if left_out:
            raise MissingError(f"no test network could be measured: {left_out[0]}")
        raise MissingError(
            f"the store has no test network of this evaluation ({plan.family}, seed {plan.seed}, "
            f"{log.name}) on {profile.device.name}: run it without {arg('offline')} first, "
            "with the same options"
        )
    scores: list[EstimatorScore] = []
    failed: list[str] = []
    for name in plan.estimators:
        training = find_training_observations(log, plan, drawn, name)
        missing += [line for line in training.missing if line not in missing]
        try:
            nets, score = _estimate_nets(name, training, nets, plan, drawn)
            scores.append(score)
        except MissingError as error:
            failed.append(f"{name}: {error}")
    if not scores:
        raise MissingError(f"no estimator can be evaluated: {'; '.join([*left_out, *failed])}")
    last_s = max(one.taken_at_s for one in log.list_all())
    return Evaluation(
        name=log.name,
        family=plan.family,
        input_shape=drawn.widest.input.shape,
        setup=plan.setup,
        device=profile.device,
        runtime=profile.runtime,
        meter=log.list_for(PASSES[0])[0].meter,
        covers=profile.covers,
        provenance=profile.provenance,
        seed=plan.seed,
        seconds=plan.seconds,
        date=datetime.fromtimestamp(last_s, UTC).date().isoformat(),
        noise_percent=compute_noise_percent(nets),
        scores=tuple(sorted(scores, key=lambda score: score.mape_percent)),
        nets=tuple(nets),
        left_out=(*left_out, *failed),
        missing=tuple(missing),
    )


def _estimate_nets(
    name: str,
    training: TrainingObservations,
    nets: Sequence[NetResult],
    plan: EvaluationPlan,
    drawn: EvaluationNets,
) -> tuple[list[NetResult], EstimatorScore]:
    """Return the networks with an estimator's estimates, and its score."""
    estimator = find_estimator(strip_probe(name))
    observations = (*training.campaign, *training.probes)
    by_name = {network.name: network for network in drawn.test}
    networks = [by_name[net.name] for net in nets]
    prediction = estimator.fit(observations).predict(networks, [plan.setup] * len(networks))
    estimated = []
    for place, net in enumerate(nets):
        mean_j = float(prediction.energy_j[place])
        variance = float(prediction.energy_sd_j[place]) ** 2
        estimate = NetEstimate(
            mean_j,
            lognormal_interval(mean_j, variance, 0.5),
            lognormal_interval(mean_j, variance, 0.95),
            float(prediction.duration_s[place]),
        )
        estimated.append(replace(net, estimates={**net.estimates, name: estimate}))
    points = sum(map(estimator.uses, observations))
    score = score_estimator(name, estimated, device_seconds=training.device_seconds, points=points)
    return estimated, score


# ---------------------------------------------------------------------------------------------
# What to evaluate: the family, its random networks, the estimators and their device time


_ADDITIVE = ("additive", "additive" + NO_PROBE)
_BASELINES = ("work-linear", "flops-linear", "flops", "constant")
# Sums of fused kernels are for inference.
_KERNELS = ("kernel-gp",)


def list_estimators(family: str = "", phase: str = "train") -> tuple[str, ...]:
    """Return the names of the estimators that are evaluated by default on a family in a phase."""
    if family in IMAGE_FAMILIES:
        # Their members also have other kernel sizes, and are wider than the original: variants of
        # the original do not cover them.
        return (*_ADDITIVE, *_KERNELS, *_BASELINES)
    # Without repeated blocks, subtractive-blocks would measure what subtractive measures.
    blocks = ("subtractive-blocks",) if family and make_family(family).groups else ()
    kernels = _KERNELS if phase == "inference" else ()
    return (*_ADDITIVE, "subtractive", *blocks, *_BASELINES, *kernels)


def strip_probe(name: str) -> str:
    """Return the estimator's name without the suffix; both variants share one campaign."""
    return name.removesuffix(NO_PROBE)


def name_campaign(name: str) -> str:
    """Return the name of the estimator whose campaign an estimator learns from."""
    estimator = find_estimator(strip_probe(name))
    return str(getattr(estimator, "campaign", estimator.name))


@dataclass(frozen=True)
class EvaluationPlan:
    """What to evaluate.

    Attributes:
        input_shape: Shape of one sample, if it is not the family's default.
        estimators: Names; one that ends in ``-noprobe`` shares the campaign of the other, and
            baselines that learn from whole networks share one.
        seconds: Device time of each campaign; probes are not included.
        seed: Seed that draws and shuffles the networks.
        budgets: Device time of single estimators that differs from ``seconds``.
        repeated: Number of test networks in the second pass; all of them by default.
    """

    family: str
    setup: Setup
    input_shape: Shape | None = None
    estimators: tuple[str, ...] = field(default_factory=list_estimators)
    nets: int = 20
    seconds: float = 60.0
    seed: int = 1
    budgets: tuple[tuple[str, float], ...] = ()
    repeated: int | None = None

    def __post_init__(self) -> None:
        check_family(self.family)
        for name in self.estimators:
            find_estimator(strip_probe(name))
        if len(set(self.estimators)) < max(1, len(self.estimators)):
            raise InputError("give at least one estimator, and each of them once")
        most = count_members(self.family) - CAMPAIGN_NETS
        if not 1 <= self.nets <= most:
            raise InputError(
                f"nets is {self.nets}: give at least 1 and at most {most:,}, the number of "
                f"distinct networks of {self.family} that remain for testing"
            )
        for seconds in (self.seconds, *dict(self.budgets).values()):
            if not seconds > 0:
                raise InputError(f"seconds is {seconds}: give each campaign more than 0")

    @property
    def campaigns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(name_campaign, self.estimators)))

    def get_seconds(self, name: str) -> float:
        """Return the device time that an estimator's campaign may take."""
        return dict(self.budgets).get(name_campaign(name), self.seconds)

    def count_nets(self, number: int) -> int:
        """Return how many test networks a pass measures: 0 is the first, 1 the second."""
        return self.nets if not number or self.repeated is None else self.repeated


@dataclass(frozen=True)
class EvaluationNets:
    """The networks of an evaluation: the widest member, those of campaigns, and held-out ones."""

    widest: Network
    campaign: tuple[Network, ...]
    test: tuple[Network, ...]

    def make_trials(self, setup: Setup) -> tuple[Trial, ...]:
        """Return eager training steps of the test networks."""
        return tuple(Trial(network, setup) for network in self.test)

    def make_target(self, setup: Setup, networks: tuple[Network, ...]) -> Target:
        return Target(self.widest, setup, networks=networks)


def draw_nets(plan: EvaluationPlan) -> EvaluationNets:
    """Return the networks of a plan, which are the same on every machine."""
    # A dict keeps the order of distinct networks.
    drawn: dict[Network, None] = {}
    for seed, count in ((f"{plan.seed}.learn", CAMPAIGN_NETS), (plan.seed, plan.nets)):
        rng, size = random.Random(seed), len(drawn) + count
        while len(drawn) < size:
            drawn[draw_family(plan.family, rng.randint, plan.input_shape)] = None
    widest = draw_family(plan.family, lambda low, high: high, plan.input_shape)
    networks = tuple(drawn)
    return EvaluationNets(widest, networks[:CAMPAIGN_NETS], networks[CAMPAIGN_NETS:])


def name_evaluation(plan: EvaluationPlan, profile_key: str) -> str:
    """Return the name of an evaluation in the store; more networks or time do not change it."""
    shape = make_family(plan.family, plan.input_shape).input.shape
    return stable_hash([plan.family, list(shape), plan.setup.to_dict(), plan.seed, profile_key])


def check_family(name: str) -> None:
    """Raise NetError unless the name is that of a family, without widths."""
    family, colon, _ = name.partition(":")
    if family not in FAMILIES:
        raise NetError(
            f"{name!r} is not a family, and only families have random networks: give one of "
            f"{', '.join(FAMILIES)}; for a single net compare `joulecast measure` with `estimate`"
        )
    if colon:
        raise NetError(f"{name}: widths are drawn at random; give {family} alone")


# ---------------------------------------------------------------------------------------------
# Observations of one evaluation, distinguished by their run tags
#
#     1a2b….test1             test networks, first pass       1a2b….test2   second pass
#     1a2b….additive          campaign of ``additive``
#     1a2b….additive.probe    probes of the test networks for ``additive``
#     1a2b….flops             whole networks that ``flops`` and other baselines learn from
#
# The part after the evaluation's name is the role of an observation. A campaign sees only the
# observations of its own role.


class EvaluationLog:
    """The observations of one evaluation among all of a device; ``store`` keeps new ones."""

    def __init__(
        self,
        name: str,
        observations: Iterable[Observation],
        store: Callable[[Observation], None] | None = None,
    ) -> None:
        self.name = name
        self._store = store
        self._observations = [one for one in observations if one.run.startswith(f"{name}.")]

    def make_tag(self, role: str) -> str:
        return f"{self.name}.{role}"

    def add(self, observation: Observation) -> None:
        if self._store is not None:
            self._store(observation)
        self._observations.append(observation)

    def list_all(self) -> tuple[Observation, ...]:
        """Return all observations, in the order they were made."""
        return tuple(self._observations)

    def list_for(self, role: str) -> tuple[Observation, ...]:
        """Return the observations with this role, in the order they were made."""
        tag = self.make_tag(role)
        return tuple(one for one in self._observations if one.run == tag)


class CampaignObservations:
    """The observations of one campaign of an evaluation, as an ``ObservationLog``."""

    def __init__(self, log: EvaluationLog, role: str) -> None:
        self._log = log
        self._role = role

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        return self._log.list_for(self._role)

    def add_observation(self, observation: Observation) -> None:
        self._log.add(observation)

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return nothing: each campaign of an evaluation starts afresh."""
        return None

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Discard the fit: a fit to a part of the observations must not replace the profile's."""


# ---------------------------------------------------------------------------------------------
# Device time of a campaign
#
# The budget is a rule over the stored observations instead of a clock. It therefore holds across
# interruptions, and a smaller budget can be evaluated later from the first observations of a larger
# one. Idle measurements and refused trials do not count.


class BudgetedEstimator:
    """An estimator that proposes nothing once its campaign has used its device time."""

    def __init__(self, estimator: Estimator, seconds: float) -> None:
        self.name = estimator.name
        self.version = estimator.version
        self.uses_anchors = estimator.uses_anchors
        self.repeats_doubtful = getattr(estimator, "repeats_doubtful", True)
        self._estimator = estimator
        self._seconds = seconds

    def uses(self, observation: Observation) -> bool:
        return self._estimator.uses(observation)

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the estimator's proposal until the budget is spent; probes are not limited."""
        if target.acquisition != "probe" and is_budget_spent(observations, self._seconds):
            return Proposal(None, 0.0, f"the budget of {self._seconds:.0f} s is spent")
        return self._estimator.propose(target, observations, fitted)

    def fit(self, observations: Sequence[Observation], fitted: Fitted | None = None) -> Fitted:
        return self._estimator.fit(observations, fitted)

    def load(self, data: Json) -> Fitted:
        return self._estimator.load(data)


def sum_work_s(observations: Iterable[Observation]) -> float:
    """Return the device time of a campaign."""
    return sum(one.cost_s for one in observations if _is_work(one))


def is_budget_spent(observations: Iterable[Observation], seconds: float) -> bool:
    """Return whether one more observation of mean duration would exceed the budget."""
    costs_s = [one.cost_s for one in observations if _is_work(one)]
    return bool(costs_s) and sum(costs_s) + fmean(costs_s) > seconds


def cut_to_budget(observations: Sequence[Observation], seconds: float) -> tuple[Observation, ...]:
    """Return the observations that a campaign with this budget would have made."""
    costs_s: list[float] = []
    for place, one in enumerate(observations):
        if _is_work(one):
            if costs_s and sum(costs_s) + fmean(costs_s) > seconds:
                return tuple(observations[:place])
            costs_s.append(one.cost_s)
    return tuple(observations)


def _is_work(observation: Observation) -> bool:
    """Return whether a network ran: the device was not idle and did not refuse the trial."""
    return bool(observation.trial.network.layers) and observation.duration_s is not None


# ---------------------------------------------------------------------------------------------
# Observations that an estimator is fitted to, and the measured test networks


@dataclass(frozen=True)
class TrainingObservations:
    """The observations that an estimator is fitted to.

    ``campaign`` has those within the budget, without test networks; ``probes`` those of the test
    networks; ``device_seconds`` is the time of both, and ``missing`` what was not measured yet.
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
    seconds = plan.get_seconds(role)
    estimator = BudgetedEstimator(find_estimator(role), seconds)
    recorded = log.list_for(role)
    within = cut_to_budget(recorded, seconds)
    target = nets.make_target(plan.setup, nets.campaign)
    target = replace(target, modes=_list_modes(recorded))
    missing = []
    if estimator.propose(target, recorded).trial is not None:
        used = f"{sum_work_s(within):.0f} s of {seconds:.0f} s measured"
        rest = f"the rest of the campaign of {role} ({used})"
        missing.append(rest if within else f"the campaign of {role}")
    probes: tuple[Observation, ...] = ()
    if name == role:
        wanted, probes = find_probes(log, plan, nets, estimator)
        absent = {trial.key for trial in wanted} - {one.trial.key for one in probes}
        if absent:
            missing.append(f"{len(absent)} of {len(wanted)} time probes of {role}")
    device_seconds = sum(one.cost_s for one in (*within, *probes))
    campaign = list_campaign(log, plan, nets, role)
    return TrainingObservations(campaign, probes, device_seconds, tuple(missing))


def find_probes(
    log: EvaluationLog,
    plan: EvaluationPlan,
    nets: EvaluationNets,
    estimator: Estimator,
    modes: Iterable[str] = (),
) -> tuple[tuple[Trial, ...], tuple[Observation, ...]]:
    """Return the time probes that an estimator needs, and its stored probes.

    ``modes`` are the ways to run a step on the device; by default those of the observations.
    """
    stored = log.list_for(f"{estimator.name}.probe")
    campaign = list_campaign(log, plan, nets, estimator.name)
    known_modes = tuple(modes) or _list_modes((*campaign, *stored))
    target = nets.make_target(plan.setup, nets.test)
    target = replace(target, modes=known_modes, acquisition="probe")
    wanted = {trial.key: trial for trial in estimator.propose(target, campaign).probes}
    # A probe may have measured energy, or how long the host takes to issue a layer.
    found = [
        one
        for one in stored
        if one.trial.key in wanted
        or one.energy_j is not None
        or ("graph" in known_modes and one.trial.mode == "eager")
    ]
    return tuple(wanted.values()), tuple(found)


def list_campaign(
    log: EvaluationLog, plan: EvaluationPlan, nets: EvaluationNets, name: str
) -> tuple[Observation, ...]:
    """Return the observations of a campaign within its budget, without test networks.

    A variant that a campaign measured may equal a test network.
    """
    within, excluded = cut_to_budget(log.list_for(name), plan.get_seconds(name)), set(nets.test)
    return tuple(one for one in within if one.trial.network not in excluded)


def _list_modes(observations: Iterable[Observation]) -> tuple[str, ...]:
    """Return the ways to run a step that appear in the observations."""
    return tuple(dict.fromkeys(["eager", *(one.trial.mode for one in observations)]))


def summarise_test_nets(
    log: EvaluationLog, plan: EvaluationPlan, drawn: EvaluationNets
) -> tuple[list[NetResult], list[str]]:
    """Return the measured test networks, and a line for each pass that is incomplete.

    The energy of a pass is the median over its windows; the reference is the mean over passes.
    """
    passes = [defaultdict[str, list[Observation]](list) for _ in PASSES]
    for windows, role in zip(passes, PASSES, strict=True):
        for one in log.list_for(role):
            windows[one.trial.key].append(one)
    trials = drawn.make_trials(plan.setup)
    nets = []
    for trial in trials:
        measured = [windows[trial.key] for windows in passes if trial.key in windows]
        if measured:
            passes_j = tuple(median(one.energy_j or 0.0 for one in each) for each in measured)
            measured_s = fmean(median(one.duration_s or 0.0 for one in each) for each in measured)
            flops = network_work(trial.network, trial.setup).total.flops
            nets.append(NetResult(trial.network.name, passes_j, fmean(passes_j), measured_s, flops))
    missing = []
    for number, windows in enumerate(passes):
        wanted = trials[: plan.count_nets(number)]
        count = sum(trial.key not in windows for trial in wanted)
        if count:
            missing.append(f"pass {number + 1} of {count} of {len(wanted)} test nets")
    return nets, missing


# ---------------------------------------------------------------------------------------------
# Scores, in percent
#
#     error      e = 100·(estimate / measured - 1)      noise   100·|a - b| / mean(a, b)
#     coverage   low ≤ measured ≤ high                  width   100·(high - low) / estimate


def score_estimator(
    name: str, nets: Sequence[NetResult], *, device_seconds: float, points: int
) -> EstimatorScore:
    """Return the score of an estimator on test networks, at least one, that have its estimates."""
    estimates = [net.estimates[name] for net in nets]
    pairs = list(zip(estimates, nets, strict=True))
    errors = [100 * (one.energy_j / net.measured_j - 1) for one, net in pairs]
    sizes = [abs(error) for error in errors]

    def compute_coverage(intervals_j: Iterable[Interval]) -> float:
        both = zip(nets, intervals_j, strict=True)
        return 100 * fmean(low <= net.measured_j <= high for net, (low, high) in both)

    def compute_width(intervals_j: Iterable[Interval]) -> float:
        # Relative to the measured energy if the estimate is zero.
        levels_j = [one.energy_j or net.measured_j for one, net in pairs]
        both = zip(levels_j, intervals_j, strict=True)
        return 100 * median((high - low) / level_j for level_j, (low, high) in both)

    intervals50_j = [one.interval50_j for one in estimates]
    intervals95_j = [one.interval95_j for one in estimates]
    time_errors = [abs(one.duration_s / net.measured_s - 1) for one, net in pairs]
    return EstimatorScore(
        estimator=name,
        nets=len(nets),
        mape_percent=fmean(sizes),
        bias_percent=fmean(errors),
        median_percent=median(sizes),
        p90_percent=float(np.percentile(sizes, 90)),
        max_percent=max(sizes),
        within5_percent=100 * fmean(size <= 5.0 for size in sizes),
        within10_percent=100 * fmean(size <= 10.0 for size in sizes),
        coverage50_percent=compute_coverage(intervals50_j),
        coverage95_percent=compute_coverage(intervals95_j),
        width50_percent=compute_width(intervals50_j),
        width95_percent=compute_width(intervals95_j),
        noise_percent=compute_noise_percent(nets),
        time_mape_percent=100 * fmean(time_errors),
        device_seconds=device_seconds,
        points=points,
    )


def compute_noise_percent(nets: Iterable[NetResult]) -> float | None:
    """Return the median difference between the passes; None if no network has two."""
    shares = [
        (max(net.passes_j) - min(net.passes_j)) / fmean(net.passes_j)
        for net in nets
        if len(net.passes_j) > 1
    ]
    return 100 * median(shares) if shares else None
