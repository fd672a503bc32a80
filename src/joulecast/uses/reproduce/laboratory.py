"""Measure for experiments, and find what they have measured.

    experiment ──measure──▶ Laboratory ──▶ measurer ──▶ observations of the folder
    experiment ──find────▶ Laboratory ◀───────────────  the same, without a device

Observations of an experiment have the run tag ``reproduce.ROLE``; those of a family's evaluation
have its own tags (``features/evaluation.py``), so that several experiments use one evaluation. A trial that
the folder holds under its role is not measured again, and neither is one that the device refused.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joulecast.campaign import Progress, run_campaign
from joulecast.errors import (
    ContaminatedError,
    DeviceAwayError,
    DeviceLostError,
    MeasurementError,
    MeterLostError,
    MissingError,
    NetError,
)
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Estimator, Fitted, Target
from joulecast.features.evaluate import Evaluation
from joulecast.features.evaluation import (
    PASSES,
    CampaignObservations,
    EvaluationLog,
    EvaluationPlan,
    TrainingObservations,
    draw_nets,
    evaluate_stored,
    find_training_observations,
    name_evaluation,
    strip_probe,
)
from joulecast.features.evaluation_run import measure_evaluation
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.measurer import TrialMeasurer
from joulecast.measurer.lost_devices import is_device_lost
from joulecast.records import Observation, Profile, Trial
from joulecast.uses.reproduce.budgeted_measurer import BudgetedMeasurer
from joulecast.uses.reproduce.observation_file import ObservationFile
from joulecast.uses.reproduce.paper_settings import AMPERE, PaperSettings

RUN = "reproduce"
"""First part of the run tag of an experiment's own observations."""

_LONGEST_REASON = 300


def _ignore(report: ProgressReport) -> None:
    pass


@dataclass
class Laboratory:
    """A device, and the observations of a folder.

    Attributes:
        log: The observations of the folder.
        profile: The device, runtime and meter that they belong to, without observations.
        settings: How large experiments are.
        measurer: Measures trials; None if only kept observations may be used.
        on_progress: Called before every measurement.
        failures: What failed in this process, with the reason.
        celeba: Folder of CelebA's images; empty if there are none.
    """

    log: ObservationFile
    profile: Profile
    settings: PaperSettings
    measurer: TrialMeasurer | None = None
    on_progress: ReportProgress = _ignore
    failures: list[str] = field(default_factory=list)
    celeba: str = ""
    _evaluations: dict[str, Evaluation] = field(default_factory=dict)
    _fits: dict[tuple[str, str], Fitted] = field(default_factory=dict)
    _measured: set[str] = field(default_factory=set)
    _is_warm: bool = False

    @property
    def folder(self) -> Path:
        """The folder that everything is kept in."""
        return self.log.path.parent

    @property
    def torch_device(self) -> Any:
        """The device that PyTorch trains on: the measured one, or the CPU of this machine."""
        return getattr(self._require_measurer().runtime, "torch_device", "cpu")

    def check_time(self) -> None:
        """Raise BudgetSpentError if no time is left for what is not a measurement."""
        measurer = self._require_measurer()
        if isinstance(measurer, BudgetedMeasurer):
            measurer.check_time()

    # -----------------------------------------------------------------------------------------
    # Single trials

    def measure(self, trials: Sequence[Trial], role: str, rounds: int = 1) -> None:
        """Measure the energy of trials, in rounds of a new order each, one window a round.

        Args:
            trials: What to measure.
            role: Name of what they are for, unique among experiments: ``fig2``.
            rounds: Windows of each trial, spread over the time that all of them take.
        """
        log = self._open_log()
        seen: dict[str, int] = {}
        for one in log.list_for(role):
            seen[one.trial.key] = seen.get(one.trial.key, 0) + (rounds if one.refusal else 1)
        windows = []
        for number in range(rounds):
            order = [trial for trial in trials if seen.get(trial.key, 0) <= number]
            random.Random(f"{role}.{number}").shuffle(order)
            windows += order
        refused: set[str] = set()
        for done, trial in enumerate(windows):
            name = trial.network.name or role
            self.on_progress(ProgressReport(done, len(windows), f"trials of {role}", name))
            if trial.key not in refused and not self._measure(log, trial, role):
                refused.add(trial.key)

    def find(self, trials: Iterable[Trial], role: str) -> dict[str, tuple[Observation, ...]]:
        """Return the kept observations with energy of each trial, by its key; none if refused."""
        groups: dict[str, list[Observation]] = {}
        for one in self._open_log().list_for(role):
            if one.energy_j is not None:
                groups.setdefault(one.trial.key, []).append(one)
        return {trial.key: tuple(groups.get(trial.key, ())) for trial in trials}

    def list_role(self, role: str) -> tuple[Observation, ...]:
        """Return the kept observations of a role in the order they were made."""
        return self._open_log().list_for(role)

    # -----------------------------------------------------------------------------------------
    # Campaigns

    def run_campaign(self, estimator: Estimator, target: Target, role: str, points: int) -> None:
        """Let an estimator choose what is measured, until it has a number of points."""
        log = self._open_log()
        if estimator.propose(target, log.list_for(role)).points >= points:
            # A campaign that has ended would measure doubtful points again each time.
            return
        measurer = self._require_measurer().change_run(log.make_tag(role), rounds=1)

        def report(progress: Progress) -> None:
            done = min(progress.points, points)
            self.on_progress(ProgressReport(done, points, f"points of {role}", progress.reason))

        self._warm_up(Trial(target.network, target.setup))
        try:
            own = CampaignObservations(log, role)
            result = run_campaign(
                measurer, own, estimator, target, points=points, on_progress=report
            )
        except ContaminatedError as error:
            self.failures.append(f"{role}: {error}")
        else:
            self.failures += [f"{role} skipped {reason}" for reason in result.skipped]

    # -----------------------------------------------------------------------------------------
    # Evaluations of families, which several experiments use

    def measure_family(self, plan: EvaluationPlan) -> None:
        """Measure what the evaluation of a family lacks."""
        name = self._name(plan)
        if name in self._measured:
            # Experiments share it: to find that nothing is missing takes seconds.
            return
        measurer = self._require_measurer()
        one_window = measurer.change_run(measurer.run, rounds=1)
        self.failures += measure_evaluation(one_window, self.log, plan, self.on_progress)
        self._measured.add(name)

    def evaluate_family(self, plan: EvaluationPlan) -> Evaluation:
        """Evaluate estimators on the kept observations of a family.

        Raises:
            MissingError: Too little was measured.
        """
        name = self._name(plan)
        if name not in self._evaluations:
            profile = self.load_profile()
            if not EvaluationLog(name, profile.observations).list_for(PASSES[0]):
                raise MissingError("no test network was measured yet")
            evaluation = evaluate_stored(profile, plan)
            self._evaluations[name] = _rename_estimator(evaluation, self.settings.ampere, AMPERE)
        return self._evaluations[name]

    def find_training(self, plan: EvaluationPlan, estimator: str) -> TrainingObservations:
        """Return the kept observations that an estimator is fitted to in an evaluation."""
        log = EvaluationLog(self._name(plan), self.load_profile().observations)
        return find_training_observations(log, plan, draw_nets(plan), self.translate(estimator))

    def fit(self, plan: EvaluationPlan, estimator: str) -> Fitted:
        """Fit an estimator to its observations in the evaluation of a family.

        Raises:
            MissingError: Too little was measured.
        """
        key = (self._name(plan), estimator)
        if key not in self._fits:
            found = self.find_training(plan, estimator)
            method = find_estimator(strip_probe(self.translate(estimator)))
            self._fits[key] = method.fit((*found.campaign, *found.probes))
        return self._fits[key]

    def translate(self, estimator: str) -> str:
        """Return the estimator that a name of results stands for."""
        return self.settings.ampere if estimator == AMPERE else estimator

    def load_profile(self) -> Profile:
        """Return the profile with all observations of the folder."""
        own = self.profile
        observations = tuple(self.log.load_observations(own.key))
        return Profile(own.device, own.runtime, own.covers, own.provenance, observations)

    # -----------------------------------------------------------------------------------------

    def _name(self, plan: EvaluationPlan) -> str:
        return name_evaluation(plan, self.profile.key)

    def _open_log(self) -> EvaluationLog:
        kept = self.log.load_observations(self.profile.key)
        return EvaluationLog(RUN, kept, self.log.add_observation)

    def _require_measurer(self) -> TrialMeasurer:
        if self.measurer is None:
            raise MissingError("no device is open: leave --redraw out to measure")
        return self.measurer

    def _measure(self, log: EvaluationLog, trial: Trial, role: str) -> bool:
        """Measure one window; return False if the device refuses the trial."""
        measurer = self._require_measurer().change_run(log.make_tag(role), rounds=1)
        self._warm_up(trial)
        name = trial.network.name or role
        try:
            log.add(measurer.measure(trial))
        except (DeviceAwayError, MeterLostError):
            raise
        except ContaminatedError as error:
            self.failures.append(f"a window of {name}: {error}")
        except (MeasurementError, NetError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
            log.add(measurer.make_refusal(trial, reason))
            self.failures.append(f"{name}: {reason}")
            if is_device_lost(error):
                raise DeviceLostError(
                    f"{self.profile.device.name} failed at {name} ({reason}); this trial will be "
                    "left out: run the same command again to continue"
                ) from error
            return False
        return True

    def _warm_up(self, trial: Trial) -> None:
        """Run a first load, which is slower than all later ones, and discard its result."""
        if self._is_warm:
            return
        self._is_warm = True
        with suppress(MeasurementError, NetError):
            self._require_measurer().time(trial)


def _rename_estimator(evaluation: Evaluation, old: str, new: str) -> Evaluation:
    """Return an evaluation in which an estimator has another name."""
    nets = tuple(
        replace(
            net,
            estimates={new if name == old else name: one for name, one in net.estimates.items()},
        )
        for net in evaluation.nets
    )
    scores = tuple(
        replace(one, estimator=new) if one.estimator == old else one for one in evaluation.scores
    )
    return replace(evaluation, nets=nets, scores=scores)


def sum_cost_s(observations: Iterable[Observation]) -> float:
    """Return the device time of observations."""
    return sum(one.cost_s for one in observations)
