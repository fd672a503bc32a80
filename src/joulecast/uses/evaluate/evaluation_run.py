"""Measuring what an evaluation still lacks.

    first pass ─▶ for each estimator: its campaign, then its probes ─▶ second pass ─▶ judge

A pass goes through the test nets in rounds, each in a new order, one window at a time: a slow drift
of the device falls on all nets alike, a net that is refused leaves the others alone, and a cut
loses one window at most. The first load of a run, on a cold device, is slower than all others and
is let pass.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from joulecast.campaign import ObservationLog, Progress, find_profile_key, run_campaign
from joulecast.errors import (
    InputError,
    MeasurementError,
    MissingError,
    NetError,
    NotTrainingError,
    OutOfMemoryError,
)
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Estimator
from joulecast.measurer import Measurer
from joulecast.records import Observation, Profile, Trial
from joulecast.uses.evaluate.evaluation import Evaluation
from joulecast.uses.evaluate.evaluation_log import (
    PASSES,
    BudgetedEstimator,
    CampaignObservations,
    EvaluationLog,
    sum_work_s,
)
from joulecast.uses.evaluate.evaluation_plan import (
    EvaluationNets,
    EvaluationPlan,
    draw_nets,
    name_evaluation,
)
from joulecast.uses.evaluate.stored_evaluation import evaluate_stored, find_probes, list_learnt

MOST_DOUBTS = 8
"""Joules of so many layers at most, after all layers of the test nets were timed."""

_REFUSALS = (OutOfMemoryError, NotTrainingError, NetError)


@dataclass(frozen=True)
class Stage:
    """Where an evaluation stands.

    Attributes:
        number: Which of ``count`` stages it is, from 1.
        what: What is done in it.
        share: How much of it is done.
        why: What is measured now.
    """

    number: int
    count: int
    what: str
    share: float
    why: str = ""


Tell = Callable[[Stage], None]


def evaluate(
    rig: Measurer, store: ObservationLog, plan: EvaluationPlan, on_progress: Tell | None = None
) -> Evaluation:
    """Measure what is not kept yet, then judge.

    Args:
        rig: Measures; ``rounds`` windows of each test net in each pass. It is open.
        store: Keeps every observation as it is made.
        plan: What is evaluated.
        on_progress: Is told before every measurement.

    Raises:
        MissingError: The device refused all test nets, or all that the estimators asked for.
    """
    runtime, meter = rig.runtime, rig.meter
    key = find_profile_key(rig)
    book = EvaluationLog(name_evaluation(plan, key), store.observations(key), store.add_observation)
    _check_unit(book, runtime.device.unit)
    work = _Work(rig, book, plan, draw_nets(plan), on_progress or (lambda stage: None), [])
    work.measure_all()
    profile = Profile(runtime.device, runtime.name, meter.covers, meter.provenance, book.list_all())
    return evaluate_stored(profile, plan, tuple(dict.fromkeys(work.troubles)))


def _check_unit(book: EvaluationLog, unit: str) -> None:
    """Units of one device differ by more than estimates do: one of them is judged at a time."""
    others = {seen.device.unit for seen in book.list_all()} - {unit}
    if others:
        raise InputError(
            "this evaluation was begun on another unit of the device: go on there, or begin anew "
            "with another --store or --seed"
        )


@dataclass
class _Work:
    """One run of an evaluation: the rig, what is kept, and what went wrong so far."""

    rig: Measurer
    book: EvaluationLog
    plan: EvaluationPlan
    draw: EvaluationNets
    tell: Tell
    troubles: list[str]
    refused: dict[str, Observation] = field(default_factory=dict)
    stage: int = 0
    what: str = ""
    awake: bool = False

    def measure_all(self) -> None:
        """Everything that is not kept yet, in the order that the module draws."""
        self._measure_pass(0)
        for name in self.plan.campaigns:
            self._run_campaign(name)
            self._time_probes(name)
        self._measure_pass(1)

    # -- test nets -------------------------------------------------------------------------------

    def _measure_pass(self, place: int) -> None:
        who = PASSES[place]
        self._begin(f"test nets, pass {place + 1} of {len(PASSES)}")
        trials = self.draw.make_trials(self.plan.setup)
        windows = Counter(seen.trial.key for seen in self.book.list_of(who))
        turns = list(self._list_turns(who, trials, windows))
        rig = replace(self._tagged(who), rounds=1)
        refused: set[Trial] = set()
        for done, trial in enumerate(turns):
            name = trial.network.name
            self._wake()
            self._say(done / len(turns), name)
            if trial in refused:
                continue
            with self._noting(name, refused, trial):
                self.book.add(rig.measure(trial))

    def _list_turns(
        self, who: str, trials: Sequence[Trial], windows: Counter[str]
    ) -> Iterator[Trial]:
        """The windows that a pass lacks, round by round, each in an order of its own."""
        for number in range(self.rig.rounds):
            order = list(trials)
            random.Random(f"{self.plan.seed}.{who}.{number}").shuffle(order)
            yield from (trial for trial in order if windows[trial.key] <= number)

    def _wake(self) -> None:
        """Let the first load pass; nobody looks at what it took."""
        if self.awake:
            return
        self.awake = True
        with suppress(MeasurementError, NetError):
            self.rig.time(Trial(self.draw.original, self.plan.setup))

    # -- estimators ------------------------------------------------------------------------------

    def _run_campaign(self, name: str) -> None:
        self._begin(f"{name} learns")
        seconds = self.plan.seconds_of(name)
        method = BudgetedEstimator(find_estimator(name), seconds)
        target = self.draw.make_target(self.plan.setup, self.draw.learn)
        target = replace(target, modes=self.rig.runtime.modes)
        if method.propose(target, self.book.list_of(name)).trial is None:
            return
        self._wake()

        def tell(now: Progress) -> None:
            self._say(sum_work_s(self.book.list_of(name)) / seconds, now.reason)

        rig, kept = self._tagged(name), CampaignObservations(self.book, name)
        try:
            result = run_campaign(rig, kept, method, target, on_progress=tell)
        except MeasurementError as error:
            self.troubles.append(f"the campaign of {name} ended early: {error}")
        except MissingError:
            # There is nothing to fit: whoever judges says so.
            return
        else:
            self.troubles += [f"{name} went without {words}" for words in result.skipped]

    def _time_probes(self, name: str) -> None:
        """The probes of an estimator that are not kept yet."""
        self._begin(f"{name} probes the test nets")
        if not self.plan.needs_probes(name):
            return
        who, method = f"{name}.probe", find_estimator(name)
        modes = self.rig.runtime.modes
        wanted, kept = find_probes(self.book, self.plan, self.draw, method, modes)
        known = {seen.trial.key for seen in kept}
        rig = self._tagged(who)
        for done, trial in enumerate(wanted):
            self._say(done / len(wanted), trial.network.name)
            if trial.key not in known:
                self._probe(name, trial, rig.time)
        if wanted:
            self._clear_doubts(name, method, rig)

    def _clear_doubts(self, name: str, method: Estimator, rig: Measurer) -> None:
        """The few looks that take most doubt off once all layers were timed."""
        target = self.draw.make_target(self.plan.setup, self.draw.tests)
        target = replace(target, acquisition="probe", modes=rig.runtime.modes)
        while True:
            kept = self.book.list_of(f"{name}.probe")
            learnt = list_learnt(self.book, self.plan, self.draw, name)
            proposal = method.propose(target, (*learnt, *self.refused.values()))
            enough = sum(seen.energy_j is not None for seen in kept) >= MOST_DOUBTS
            if proposal.trial is None or proposal.trial.key in self.refused:
                return
            if proposal.with_energy and enough:
                return
            self._say(1.0, proposal.reason)
            self._probe(name, proposal.trial, rig.measure if proposal.with_energy else rig.time)

    def _probe(self, name: str, trial: Trial, look: Callable[[Trial], Observation]) -> None:
        """A look at a layer alone; one that fails is not asked for again."""
        self._wake()
        try:
            self.book.add(look(trial))
        except (MeasurementError, NetError) as error:
            self.troubles.append(f"a probe of {name}: {error}")
            self.refused[trial.key] = Observation(trial)

    # -- all -------------------------------------------------------------------------------------

    def _tagged(self, who: str) -> Measurer:
        return replace(self.rig, run=self.book.tag(who))

    def _begin(self, what: str) -> None:
        self.stage += 1
        self.what = what
        self._say(0.0, "")

    def _say(self, share: float, why: str) -> None:
        count = len(PASSES) + 2 * len(self.plan.campaigns)
        self.tell(Stage(self.stage, count, self.what, min(1.0, share), why))

    @contextmanager
    def _noting(
        self, what: str, refused: set[Trial] | None = None, trial: Trial | None = None
    ) -> Iterator[None]:
        """Goes on where a trial fails; one that is refused for good is added to ``refused``."""
        try:
            yield
        except _REFUSALS as error:
            self.troubles.append(f"{what}: {error}")
            if refused is not None and trial is not None:
                refused.add(trial)
        except MeasurementError as error:
            self.troubles.append(f"a window of {what}: {error}")
