"""Measure what an evaluation still lacks, then evaluate.

    first pass ─▶ for each estimator: its campaign, then its probes ─▶ second pass ─▶ evaluate

A pass measures the test networks in rounds, one window at a time and each round in a new order.
Slow drift of the device then affects all networks alike, a network that is refused does not affect
the others, and an interruption loses at most one window. The first load on a cold device is slower
than all later ones and is not recorded.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from joulecast.campaign import ObservationLog, Progress, find_profile_key, run_campaign
from joulecast.estimators import find_estimator
from joulecast.features.evaluate import Evaluation
from joulecast.features.evaluation import (
    PASSES,
    BudgetedEstimator,
    CampaignObservations,
    EvaluationLog,
    EvaluationNets,
    EvaluationPlan,
    draw_nets,
    evaluate_stored,
    find_probes,
    list_campaign,
    name_evaluation,
    sum_work_s,
)
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.measurer import TrialMeasurer
from joulecast.records import Observation, Profile, Trial
from joulecast.system.errors import (
    InputError,
    MeasurementError,
    MissingError,
    NetError,
    NotTrainingError,
    OutOfMemoryError,
    arg,
)

MAX_ENERGY_PROBES = 8
"""Layers whose energy is measured at most, after all layers of the test networks were timed."""
_REFUSALS = (OutOfMemoryError, NotTrainingError, NetError)


def measure_and_evaluate(
    measurer: TrialMeasurer,
    store: ObservationLog,
    plan: EvaluationPlan,
    on_progress: ReportProgress | None = None,
) -> Evaluation:
    """Measure what is not stored yet, then evaluate.

    The measurer is open; it measures ``rounds`` windows of each test network per pass.
    """
    failures = measure_evaluation(measurer, store, plan, on_progress)
    observations = store.load_observations(find_profile_key(measurer))
    return evaluate_stored(make_profile(measurer, observations), plan, failures)


def measure_evaluation(
    measurer: TrialMeasurer,
    store: ObservationLog,
    plan: EvaluationPlan,
    on_progress: ReportProgress | None = None,
) -> tuple[str, ...]:
    """Measure what an evaluation lacks; return the trials that failed, with the reasons."""
    key = find_profile_key(measurer)
    name = name_evaluation(plan, key)
    log = EvaluationLog(name, store.load_observations(key), store.add_observation)
    # Units of a device differ by more than estimates do.
    if {one.device.unit for one in log.list_all()} - {measurer.runtime.device.unit}:
        raise InputError(
            "this evaluation was started on another unit of the device: continue there, or start "
            f"a new one with another {arg('store')} or {arg('seed')}"
        )
    run = _EvaluationRun(measurer, log, plan, draw_nets(plan), on_progress or (lambda _: None))
    run.measure_pass(0)
    for campaign in plan.campaigns:
        run.measure_campaign(campaign)
        run.measure_probes(campaign)
    run.measure_pass(1)
    return tuple(dict.fromkeys(run.failures))


@dataclass
class _EvaluationRun:
    """One run of an evaluation.

    Attributes:
        failures: Trials that failed, with the reason.
        refused: Probes that the device refused, by trial key.
        stage: Number of the current stage, from 1; ``what`` is its name.
    """

    measurer: TrialMeasurer
    log: EvaluationLog
    plan: EvaluationPlan
    nets: EvaluationNets
    on_progress: ReportProgress
    failures: list[str] = field(default_factory=list)
    refused: dict[str, Observation] = field(default_factory=dict)
    stage: int = 0
    what: str = ""
    is_warm: bool = False

    def measure_pass(self, number: int) -> None:
        role = PASSES[number]
        self._begin_stage(f"test nets, pass {number + 1} of {len(PASSES)}")
        trials = self.nets.make_trials(self.plan.setup)[: self.plan.count_nets(number)]
        # The windows that the pass lacks, round by round.
        stored = Counter(one.trial.key for one in self.log.list_for(role))
        windows = []
        for place in range(self.measurer.rounds):
            order = list(trials)
            random.Random(f"{self.plan.seed}.{role}.{place}").shuffle(order)
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
        seconds = self.plan.get_seconds(name)
        estimator = BudgetedEstimator(find_estimator(name), seconds)
        target = self.nets.make_target(self.plan.setup, self.nets.campaign)
        target = replace(target, modes=self.measurer.runtime.modes)
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
            # There is nothing to fit, which evaluate_stored reports.
            return
        else:
            self.failures += [f"{name} skipped {reason}" for reason in result.skipped]

    def measure_probes(self, name: str) -> None:
        self._begin_stage(f"probes of {name}")
        if name not in self.plan.estimators:
            return
        estimator, modes = find_estimator(name), self.measurer.runtime.modes
        wanted, stored = find_probes(self.log, self.plan, self.nets, estimator, modes)
        known = {one.trial.key for one in stored}
        measurer = self.measurer.change_run(self.log.make_tag(f"{name}.probe"))
        for done, trial in enumerate(wanted):
            self._report(done / len(wanted), trial.network.name)
            if trial.key not in known:
                self._measure_probe(name, trial, measurer.time)
        # Then measure the few probes that reduce the variance most.
        target = self.nets.make_target(self.plan.setup, self.nets.test)
        target = replace(target, acquisition="probe", modes=modes)
        campaign = list_campaign(self.log, self.plan, self.nets, name)
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
        """Measure an isolated layer; one that fails is not tried again."""
        self._warm_up()
        try:
            self.log.add(measure(trial))
        except (MeasurementError, NetError) as error:
            self.failures.append(f"a probe of {name}: {error}")
            self.refused[trial.key] = Observation(trial)

    def _warm_up(self) -> None:
        """Run a first load, whose result is discarded."""
        if self.is_warm:
            return
        self.is_warm = True
        with suppress(MeasurementError, NetError):
            self.measurer.time(Trial(self.nets.widest, self.plan.setup))

    def _begin_stage(self, what: str) -> None:
        self.stage += 1
        self.what = what
        self._report(0.0, "")

    def _report(self, share: float, detail: str) -> None:
        count = len(PASSES) + 2 * len(self.plan.campaigns)
        what = f"{self.stage} of {count}: {self.what}"
        self.on_progress(ProgressReport(min(1.0, share), 1.0, what, detail))


def make_profile(measurer: TrialMeasurer, observations: Sequence[Observation]) -> Profile:
    """Return a profile of the device and meter of a measurer."""
    runtime, meter = measurer.runtime, measurer.meter
    return Profile(
        runtime.device, runtime.name, meter.covers, meter.provenance, tuple(observations)
    )
