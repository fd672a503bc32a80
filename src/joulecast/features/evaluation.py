"""Measure what an evaluation lacks, and evaluate estimators on what is stored.

    test networks ─pass 1─▶ campaign and probes of each estimator ─▶ pass 2 ─▶ fit, predict, score

The reference energy of a network is the mean of two passes at different times; their difference is
the noise. No estimator learns from the energy of a test network: each is fitted to its own
campaign, cut at its budget, and to its probes of the test networks.

Networks are distinct and drawn as their family says; in the paper, each parameter is uniform in
1..original. The networks that campaigns may measure are drawn first and from their own seed, so
that asking for more test networks later changes neither them nor the existing test networks.

A pass measures the test networks in rounds, one window at a time and each round in a new order.
Slow drift of the device then affects all networks alike, a network that is refused does not affect
the others, and an interruption loses at most one window. The first load on a cold device is slower
than all later ones and is not recorded.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from statistics import fmean, median

import numpy as np

from joulecast.campaign import ObservationLog, Progress, run_campaign
from joulecast.campaign.trial_log import describe_profile
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Estimator, Fitted, Proposal, Target
from joulecast.families import IMAGE_FAMILIES, count_members, draw_family, make_family
from joulecast.features.evaluate import EstimatorScore, Evaluation, NetEstimate, NetResult
from joulecast.features.nets import check_family
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.gp.lognormal import lognormal_interval
from joulecast.measurer import TrialMeasurer
from joulecast.operators import network_work
from joulecast.records import Network, Observation, Profile, Setup, Trial, stable_hash
from joulecast.system.errors import (
    InputError,
    MeasurementError,
    MissingError,
    NetError,
    NotTrainingError,
    OutOfMemoryError,
    arg,
)

NO_PROBE = "-noprobe"
"""Suffix of an estimator's name: without probes of the test networks."""
PASSES = ("test1", "test2")
"""Roles of the two passes over the test networks."""
CAMPAIGN_NETS = 24
MAX_ENERGY_PROBES = 8
"""Layers whose energy is measured at most, after all layers of the test networks were timed."""
_REFUSALS = (OutOfMemoryError, NotTrainingError, NetError)


def measure_and_evaluate(
    measurer: TrialMeasurer,
    store: ObservationLog,
    plan: EvaluationPlan,
    on_progress: ReportProgress | None = None,
) -> Evaluation:
    """Measure what is not stored yet with an open measurer, then evaluate."""
    failures = measure_evaluation(measurer, store, plan, on_progress)
    return evaluate_stored(load_measured(measurer, store), plan, failures)


def load_measured(measurer: TrialMeasurer, store: ObservationLog) -> Profile:
    """Return the profile of the device and meter of a measurer."""
    own = describe_profile(measurer)
    return replace(own, observations=tuple(store.load_observations(own.key)))


def evaluate_stored(
    profile: Profile, plan: EvaluationPlan, left_out: Sequence[str] = ()
) -> Evaluation:
    """Evaluate estimators on observations; ``left_out`` says which trials failed, and why."""
    log = EvaluationLog(plan, profile)
    nets, missing = log.summarise_nets()
    if not nets:
        if left_out:
            raise MissingError(f"no test network could be measured: {left_out[0]}")
        raise MissingError(
            f"the store has no test network of this evaluation ({plan.family}, seed {plan.seed}, "
            f"{log.name}) on {profile.device.name}: run it without {arg('offline')} first, "
            "with the same options"
        )
    scores: list[EstimatorScore] = []
    failed = list(left_out)
    for name in plan.estimators:
        training = log.find_training(name)
        missing += [line for line in training.missing if line not in missing]
        try:
            nets, score = _estimate_nets(name, training, nets, plan)
            scores.append(score)
        except MissingError as error:
            failed.append(f"{name}: {error}")
    if not scores:
        raise MissingError(f"no estimator can be evaluated: {'; '.join(failed)}")
    last_s = max(one.taken_at_s for one in log.observations)
    return Evaluation(
        name=log.name,
        family=plan.family,
        input_shape=plan.drawn.widest.input.shape,
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
        left_out=tuple(failed),
        missing=tuple(missing),
    )


def _estimate_nets(
    name: str, training: TrainingObservations, nets: Sequence[NetResult], plan: EvaluationPlan
) -> tuple[list[NetResult], EstimatorScore]:
    """Return the networks with an estimator's estimates, and its score."""
    estimator = find_estimator(name.removesuffix(NO_PROBE))
    observations = (*training.campaign, *training.probes)
    by_name = {network.name: network for network in plan.drawn.test}
    networks = [by_name[net.name] for net in nets]
    found = estimator.fit(observations).predict(networks, [plan.setup] * len(networks))
    rows = np.column_stack([found.energy_j, found.energy_sd_j, found.duration_s]).tolist()
    estimated = []
    for net, (mean_j, sd_j, duration_s) in zip(nets, rows, strict=True):
        half, most = (lognormal_interval(mean_j, sd_j**2, level) for level in (0.5, 0.95))
        estimate = NetEstimate(mean_j, half, most, duration_s)
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


def name_campaign(name: str) -> str:
    """Return the name of the estimator whose campaign an estimator learns from."""
    estimator = find_estimator(name.removesuffix(NO_PROBE))
    return str(getattr(estimator, "campaign", estimator.name))


@dataclass(frozen=True)
class EvaluationPlan:
    """What to evaluate.

    An estimator whose name ends in ``-noprobe`` shares the campaign of the other, and baselines
    that learn from whole networks share one.
    """

    family: str
    setup: Setup
    input_shape: tuple[int, ...] | None = None  # of one sample, if not the family's default
    estimators: tuple[str, ...] = field(default_factory=list_estimators)
    nets: int = 20
    seconds: float = 60.0  # device time of each campaign, without probes
    seed: int = 1
    budgets: tuple[tuple[str, float], ...] = ()  # device time of estimators that differs
    repeated: int | None = None  # test networks in the second pass; all by default

    def __post_init__(self) -> None:
        check_family(self.family)
        if ":" in self.family:
            alone = self.family.partition(":")[0]
            raise NetError(f"{self.family}: widths are drawn at random; give {alone} alone")
        for name in self.estimators:
            find_estimator(name.removesuffix(NO_PROBE))
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
        return dict(self.budgets).get(name_campaign(name), self.seconds)

    @cached_property
    def drawn(self) -> EvaluationNets:
        """The networks of the plan, which are the same on every machine."""
        # A dict keeps the order of distinct networks.
        drawn: dict[Network, None] = {}
        for seed, count in ((f"{self.seed}.learn", CAMPAIGN_NETS), (self.seed, self.nets)):
            rng, size = random.Random(seed), len(drawn) + count
            while len(drawn) < size:
                drawn[draw_family(self.family, rng.randint, self.input_shape)] = None
        widest = draw_family(self.family, lambda low, high: high, self.input_shape)
        networks = tuple(drawn)
        return EvaluationNets(widest, networks[:CAMPAIGN_NETS], networks[CAMPAIGN_NETS:])

    def list_trials(self, number: int) -> tuple[Trial, ...]:
        """Return the test networks of a pass as trials: 0 is the first, 1 the second."""
        count = self.repeated if number else None
        return tuple(Trial(network, self.setup) for network in self.drawn.test[:count])

    def make_target(
        self, modes: tuple[str, ...] = ("eager",), acquisition: str = "target"
    ) -> Target:
        """Return the target of a campaign, or of probes of the test networks."""
        networks = self.drawn.test if acquisition == "probe" else self.drawn.campaign
        return Target(self.drawn.widest, self.setup, acquisition, networks=networks, modes=modes)


@dataclass(frozen=True)
class EvaluationNets:
    """The networks of an evaluation: the widest member, those of campaigns, and held-out ones."""

    widest: Network
    campaign: tuple[Network, ...]
    test: tuple[Network, ...]


def name_evaluation(plan: EvaluationPlan, profile_key: str) -> str:
    """Return the name of an evaluation in the store; more networks or time do not change it."""
    shape = make_family(plan.family, plan.input_shape).input.shape
    return stable_hash([plan.family, list(shape), plan.setup.to_dict(), plan.seed, profile_key])


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


@dataclass(frozen=True)
class TrainingObservations:
    """The observations that an estimator is fitted to."""

    campaign: tuple[Observation, ...]  # within the budget, without test networks
    probes: tuple[Observation, ...]  # of the test networks
    device_seconds: float
    missing: tuple[str, ...] = ()  # what was not measured yet


class EvaluationLog:
    """The observations of one evaluation among all of a device; ``store`` keeps new ones."""

    def __init__(
        self, plan: EvaluationPlan, profile: Profile, store: ObservationLog | None = None
    ) -> None:
        self.plan, self._store = plan, store
        self.name = name_evaluation(plan, profile.key)
        own = f"{self.name}."
        self.observations = [one for one in profile.observations if one.run.startswith(own)]

    def make_tag(self, role: str) -> str:
        return f"{self.name}.{role}"

    def add(self, observation: Observation) -> None:
        if self._store is not None:
            self._store.add_observation(observation)
        self.observations.append(observation)

    def list_for(self, role: str) -> tuple[Observation, ...]:
        tag = self.make_tag(role)
        return tuple(one for one in self.observations if one.run == tag)

    def list_campaign(self, name: str) -> tuple[Observation, ...]:
        """Return the observations of a campaign within its budget, without test networks.

        A variant that a campaign measured may equal a test network.
        """
        within = cut_to_budget(self.list_for(name), self.plan.get_seconds(name))
        excluded = set(self.plan.drawn.test)
        return tuple(one for one in within if one.trial.network not in excluded)

    def find_probes(
        self, estimator: Estimator, modes: Iterable[str] = ()
    ) -> tuple[tuple[Trial, ...], tuple[Observation, ...]]:
        """Return the time probes that an estimator needs, and its stored probes.

        ``modes`` are the ways to run a step on the device; by default those of the observations.
        """
        stored = self.list_for(f"{estimator.name}.probe")
        campaign = self.list_campaign(estimator.name)
        target = self.plan.make_target(tuple(modes) or _list_modes((*campaign, *stored)), "probe")
        wanted = {trial.key: trial for trial in estimator.propose(target, campaign).probes}
        # A probe may have measured energy, or how long the host takes to issue a layer.
        found = [
            one
            for one in stored
            if one.trial.key in wanted
            or one.energy_j is not None
            or ("graph" in target.modes and one.trial.mode == "eager")
        ]
        return tuple(wanted.values()), tuple(found)

    def find_training(self, name: str) -> TrainingObservations:
        """Return the stored observations for an estimator, and what is missing."""
        role = name_campaign(name)
        seconds = self.plan.get_seconds(role)
        estimator = BudgetedEstimator(find_estimator(role), seconds)
        recorded = self.list_for(role)
        within = cut_to_budget(recorded, seconds)
        missing = []
        target = self.plan.make_target(_list_modes(recorded))
        if estimator.propose(target, recorded).trial is not None:
            used = f"{sum_work_s(within):.0f} s of {seconds:.0f} s measured"
            rest = f"the rest of the campaign of {role} ({used})"
            missing.append(rest if within else f"the campaign of {role}")
        probes: tuple[Observation, ...] = ()
        if name == role:
            wanted, probes = self.find_probes(estimator)
            absent = {trial.key for trial in wanted} - {one.trial.key for one in probes}
            if absent:
                missing.append(f"{len(absent)} of {len(wanted)} time probes of {role}")
        device_seconds = sum(one.cost_s for one in (*within, *probes))
        return TrainingObservations(
            self.list_campaign(role), probes, device_seconds, tuple(missing)
        )

    def summarise_nets(self) -> tuple[list[NetResult], list[str]]:
        """Return the measured test networks, and a line for each pass that is incomplete.

        The energy of a pass is the median over its windows; the reference is the mean over passes.
        """
        passes = [defaultdict[str, list[Observation]](list) for _ in PASSES]
        for windows, role in zip(passes, PASSES, strict=True):
            for one in self.list_for(role):
                windows[one.trial.key].append(one)
        nets, missing = [], []
        for trial in self.plan.list_trials(0):
            measured = [windows[trial.key] for windows in passes if trial.key in windows]
            if measured:
                passes_j = tuple(median(one.energy_j or 0.0 for one in each) for each in measured)
                means_s = [median(one.duration_s or 0.0 for one in each) for each in measured]
                flops = network_work(trial.network, trial.setup).total.flops
                name = trial.network.name
                nets.append(NetResult(name, passes_j, fmean(passes_j), fmean(means_s), flops))
        for number, windows in enumerate(passes):
            wanted = self.plan.list_trials(number)
            count = sum(trial.key not in windows for trial in wanted)
            if count:
                missing.append(f"pass {number + 1} of {count} of {len(wanted)} test nets")
        return nets, missing


def _list_modes(observations: Iterable[Observation]) -> tuple[str, ...]:
    """Return the ways to run a step that appear in the observations."""
    return tuple(dict.fromkeys(["eager", *(one.trial.mode for one in observations)]))


@dataclass(frozen=True)
class CampaignObservations(ObservationLog):
    """The observations of one campaign of an evaluation, which starts afresh and keeps no fit.

    A fit to a part of the observations must not replace the profile's.
    """

    log: EvaluationLog
    role: str

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        return self.log.list_for(self.role)

    def add_observation(self, observation: Observation) -> None:
        self.log.add(observation)


# ---------------------------------------------------------------------------------------------
# Device time of a campaign
#
# The budget is a rule over the stored observations instead of a clock. It therefore holds across
# interruptions, and a smaller budget can be evaluated later from the first observations of a larger
# one. Idle measurements and refused trials do not count.


class BudgetedEstimator:
    """An estimator that proposes nothing once its campaign has used its device time."""

    def __init__(self, estimator: Estimator, seconds: float) -> None:
        self.name, self.version = estimator.name, estimator.version
        self.uses_anchors = estimator.uses_anchors
        self.repeats_doubtful = getattr(estimator, "repeats_doubtful", True)
        self.uses, self.fit, self.load = estimator.uses, estimator.fit, estimator.load
        self._estimator, self._seconds = estimator, seconds

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the estimator's proposal until the budget is spent; probes are not limited."""
        if target.acquisition != "probe" and is_budget_spent(observations, self._seconds):
            return Proposal(None, 0.0, f"the budget of {self._seconds:.0f} s is spent")
        return self._estimator.propose(target, observations, fitted)


def _list_costs(observations: Iterable[Observation]) -> list[float]:
    """Return the device time of trials that ran: not of the idle device, and not refused."""
    return [
        one.cost_s
        for one in observations
        if one.trial.network.layers and one.duration_s is not None
    ]


def sum_work_s(observations: Iterable[Observation]) -> float:
    """Return the device time of a campaign."""
    return sum(_list_costs(observations))


def is_budget_spent(observations: Iterable[Observation], seconds: float) -> bool:
    """Return whether one more observation of mean duration would exceed the budget."""
    costs_s = _list_costs(observations)
    return bool(costs_s) and sum(costs_s) + fmean(costs_s) > seconds


def cut_to_budget(observations: Sequence[Observation], seconds: float) -> tuple[Observation, ...]:
    """Return the observations that a campaign with this budget would have made."""
    for place, one in enumerate(observations):
        if _list_costs([one]) and is_budget_spent(observations[:place], seconds):
            return tuple(observations[:place])
    return tuple(observations)


# ---------------------------------------------------------------------------------------------
# Scores, in percent
#
#     error      e = 100·(estimate / measured - 1)      noise   100·|a - b| / mean(a, b)
#     coverage   low ≤ measured ≤ high                  width   100·(high - low) / estimate


def score_estimator(
    name: str, nets: Sequence[NetResult], *, device_seconds: float, points: int
) -> EstimatorScore:
    """Return the score of an estimator on test networks, at least one, that have its estimates."""
    own = [net.estimates[name] for net in nets]
    measured_j = np.array([net.measured_j for net in nets])
    energy_j = np.array([one.energy_j for one in own])
    errors = 100 * (energy_j / measured_j - 1)
    sizes = np.abs(errors)
    estimated_s = np.array([one.duration_s for one in own])
    measured_s = np.array([net.measured_s for net in nets])
    found = {
        "mape": sizes.mean(),
        "bias": errors.mean(),
        "median": np.median(sizes),
        "p90": np.percentile(sizes, 90),
        "max": sizes.max(),
        "within5": 100 * np.mean(sizes <= 5.0),
        "within10": 100 * np.mean(sizes <= 10.0),
        "time_mape": 100 * np.mean(np.abs(estimated_s / measured_s - 1)),
    }
    # Relative to the measured energy if the estimate is zero.
    levels_j = np.where(energy_j, energy_j, measured_j)
    intervals_j = {50: [one.interval50_j for one in own], 95: [one.interval95_j for one in own]}
    for level, ends_j in intervals_j.items():
        low_j, high_j = np.array(ends_j).T
        found[f"coverage{level}"] = 100 * np.mean((low_j <= measured_j) & (measured_j <= high_j))
        found[f"width{level}"] = 100 * np.median((high_j - low_j) / levels_j)
    return EstimatorScore(
        estimator=name,
        nets=len(nets),
        **{f"{key}_percent": float(value) for key, value in found.items()},
        noise_percent=compute_noise_percent(nets),
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


# ---------------------------------------------------------------------------------------------
# Measuring


def measure_evaluation(
    measurer: TrialMeasurer,
    store: ObservationLog,
    plan: EvaluationPlan,
    on_progress: ReportProgress | None = None,
) -> tuple[str, ...]:
    """Measure what an evaluation lacks; return the trials that failed, with the reasons."""
    log = EvaluationLog(plan, load_measured(measurer, store), store)
    # Units of a device differ by more than estimates do.
    if {one.device.unit for one in log.observations} - {measurer.runtime.device.unit}:
        raise InputError(
            "this evaluation was started on another unit of the device: continue there, or start "
            f"a new one with another {arg('store')} or {arg('seed')}"
        )
    run = _EvaluationRun(measurer, log, on_progress or (lambda _: None))
    run.measure_pass(0)
    for campaign in plan.campaigns:
        run.measure_campaign(campaign)
        run.measure_probes(campaign)
    run.measure_pass(1)
    return tuple(dict.fromkeys(run.failures))


@dataclass
class _EvaluationRun:
    """One run of an evaluation."""

    measurer: TrialMeasurer
    log: EvaluationLog
    on_progress: ReportProgress
    failures: list[str] = field(default_factory=list)  # trials that failed, and why
    refused: dict[str, Observation] = field(default_factory=dict)  # probes, by trial key
    stage: int = 0  # number of the current stage, from 1
    what: str = ""  # its name
    is_warm: bool = False

    def measure_pass(self, number: int) -> None:
        role, plan = PASSES[number], self.log.plan
        self._begin_stage(f"test nets, pass {number + 1} of {len(PASSES)}")
        # The windows that the pass lacks, round by round.
        stored = Counter(one.trial.key for one in self.log.list_for(role))
        windows = []
        for place in range(self.measurer.rounds):
            order = list(plan.list_trials(number))
            random.Random(f"{plan.seed}.{role}.{place}").shuffle(order)
            windows += [trial for trial in order if stored[trial.key] <= place]
        measurer = self.measurer.change_run(self.log.make_tag(role), rounds=1)
        refused: set[Trial] = set()
        for done, trial in enumerate(windows):
            name = trial.network.name
            self._warm_up()
            self._report(done / len(windows), name)
            if trial in refused:
                continue
            try:
                self.log.add(measurer.measure(trial))
            except _REFUSALS as error:
                self.failures.append(f"{name}: {error}")
                refused.add(trial)
            except MeasurementError as error:
                self.failures.append(f"a window of {name}: {error}")

    def measure_campaign(self, name: str) -> None:
        self._begin_stage(f"campaign of {name}")
        seconds = self.log.plan.get_seconds(name)
        estimator = BudgetedEstimator(find_estimator(name), seconds)
        target = self.log.plan.make_target(self.measurer.runtime.modes)
        if estimator.propose(target, self.log.list_for(name)).trial is None:
            return
        self._warm_up()

        def report(progress: Progress) -> None:
            self._report(sum_work_s(self.log.list_for(name)) / seconds, progress.reason)

        measurer = self.measurer.change_run(self.log.make_tag(name))
        log = CampaignObservations(self.log, name)
        try:
            result = run_campaign(measurer, log, estimator, target, on_progress=report)
        except MeasurementError as error:
            self.failures.append(f"the campaign of {name} ended early: {error}")
        except MissingError:
            pass  # There is nothing to fit, which evaluate_stored reports.
        else:
            self.failures += [f"{name} skipped {reason}" for reason in result.skipped]

    def measure_probes(self, name: str) -> None:
        self._begin_stage(f"probes of {name}")
        if name not in self.log.plan.estimators:
            return
        estimator, modes = find_estimator(name), self.measurer.runtime.modes
        wanted, stored = self.log.find_probes(estimator, modes)
        known = {one.trial.key for one in stored}
        measurer = self.measurer.change_run(self.log.make_tag(f"{name}.probe"))
        for done, trial in enumerate(wanted):
            self._report(done / len(wanted), trial.network.name)
            if trial.key not in known:
                self._measure_probe(name, trial, measurer.time)
        # Then measure the few probes that reduce the variance most.
        target, campaign = self.log.plan.make_target(modes, "probe"), self.log.list_campaign(name)
        while wanted:
            stored = self.log.list_for(f"{name}.probe")
            proposal = estimator.propose(target, (*campaign, *stored, *self.refused.values()))
            if proposal.trial is None or proposal.trial.key in self.refused:
                return
            energy_count = sum(one.energy_j is not None for one in stored)
            if proposal.with_energy and energy_count >= MAX_ENERGY_PROBES:
                return
            self._report(1.0, proposal.reason)
            measure = measurer.measure if proposal.with_energy else measurer.time
            self._measure_probe(name, proposal.trial, measure)

    def _measure_probe(
        self, name: str, trial: Trial, measure: Callable[[Trial], Observation]
    ) -> None:
        self._warm_up()
        try:
            self.log.add(measure(trial))
        except (MeasurementError, NetError) as error:
            self.failures.append(f"a probe of {name}: {error}")
            # It is not tried again.
            self.refused[trial.key] = Observation(trial)

    def _warm_up(self) -> None:
        """Run a first load, whose result is discarded."""
        if not self.is_warm:
            self.is_warm = True
            with suppress(MeasurementError, NetError):
                plan = self.log.plan
                self.measurer.time(Trial(plan.drawn.widest, plan.setup))

    def _begin_stage(self, what: str) -> None:
        self.stage, self.what = self.stage + 1, what
        self._report(0.0, "")

    def _report(self, share: float, detail: str) -> None:
        count = len(PASSES) + 2 * len(self.log.plan.campaigns)
        what = f"{self.stage} of {count}: {self.what}"
        self.on_progress(ProgressReport(min(1.0, share), 1.0, what, detail))
