"""From what is kept to an Evaluation, without a device.

Each estimator is fitted to its own campaign, cut at the budget, and to the probes it wanted for the
test nets; then it answers for all test nets at once. What is not kept is named, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from joulecast.errors import MissingError
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Estimator, Target
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import Network, Observation, Profile, Trial
from joulecast.uses.evaluate.evaluation import EstimatorScore, Evaluation, NetEstimate, NetResult
from joulecast.uses.evaluate.evaluation_log import (
    PASSES,
    BudgetedEstimator,
    EvaluationLog,
    cut_to_budget,
    sum_work_s,
)
from joulecast.uses.evaluate.evaluation_plan import (
    EvaluationNets,
    EvaluationPlan,
    draw_nets,
    name_evaluation,
    strip_probe,
)
from joulecast.uses.evaluate.measured_nets import summarise_test_nets
from joulecast.uses.evaluate.scores import compute_noise_percent, score_estimator


@dataclass(frozen=True)
class TrainingObservations:
    """What an estimator may learn from.

    Attributes:
        campaign: What its campaign saw within the budget, test nets left out.
        probes: Time probes for the test nets.
        device_seconds: What all that took.
        missing: What is not there, in words.
    """

    campaign: tuple[Observation, ...]
    probes: tuple[Observation, ...]
    device_seconds: float
    missing: tuple[str, ...] = ()


def evaluate_stored(
    profile: Profile, plan: EvaluationPlan, left_out: Sequence[str] = ()
) -> Evaluation:
    """Judge estimators by what a profile holds; nothing is measured.

    Args:
        profile: The device, and everything that was observed there.
        plan: What is evaluated.
        left_out: What is known to have been refused, in words.

    Raises:
        MissingError: No test net was measured yet, or no estimator has learnt anything.
    """
    book = EvaluationLog(name_evaluation(plan, profile.key), profile.observations)
    draw = draw_nets(plan)
    nets, missing = summarise_test_nets(book, plan, draw)
    if not nets:
        raise MissingError(_say_nothing_kept(profile, plan, book.name, left_out))
    scores: list[EstimatorScore] = []
    reasons: list[str] = []
    for name in plan.estimators:
        lesson = find_training_observations(book, plan, draw, name)
        missing += [words for words in lesson.missing if words not in missing]
        try:
            nets, score = _answer(name, lesson, nets, plan, draw)
            scores.append(score)
        except MissingError as error:
            reasons.append(f"{name}: {error}")
    if not scores:
        raise MissingError(f"no estimator can be judged: {'; '.join([*left_out, *reasons])}")
    return Evaluation(
        name=book.name,
        net=plan.net,
        input_shape=draw.original.input.shape,
        setup=plan.setup,
        device=profile.device,
        runtime=profile.runtime,
        meter=book.list_of(PASSES[0])[0].meter,
        covers=profile.covers,
        provenance=profile.provenance,
        seed=plan.seed,
        seconds=plan.seconds,
        date=_find_date(book),
        noise_percent=compute_noise_percent(nets),
        scores=tuple(sorted(scores, key=lambda score: score.mape_percent)),
        nets=tuple(nets),
        left_out=(*left_out, *reasons),
        missing=tuple(missing),
    )


def find_training_observations(
    book: EvaluationLog, plan: EvaluationPlan, draw: EvaluationNets, name: str
) -> TrainingObservations:
    """What is kept for an estimator, and what is not."""
    who = strip_probe(name)
    method = BudgetedEstimator(find_estimator(who), plan.seconds_of(who))
    whole = book.list_of(who)
    within = cut_to_budget(whole, plan.seconds_of(who))
    campaign = _without(draw.tests, within)
    target = draw.make_target(plan.setup, draw.learn)
    target = replace(target, modes=_list_modes(whole))
    missing = [_say_cut(who, plan, within)] if method.propose(target, whole).trial else []
    probes: tuple[Observation, ...] = ()
    if name == who:
        wanted, probes = find_probes(book, plan, draw, method)
        lacking = {trial.key for trial in wanted} - {seen.trial.key for seen in probes}
        if lacking:
            missing.append(f"{len(lacking)} of {len(wanted)} time probes of {who}")
    return TrainingObservations(campaign, probes, _charge((*within, *probes)), tuple(missing))


def find_probes(
    book: EvaluationLog,
    plan: EvaluationPlan,
    draw: EvaluationNets,
    method: Estimator,
    modes: Iterable[str] = (),
) -> tuple[tuple[Trial, ...], tuple[Observation, ...]]:
    """Time probes that an estimator wants for the test nets, and what is kept of its probes.

    Args:
        book: What is kept.
        plan: What is evaluated.
        draw: Its nets.
        method: The estimator.
        modes: How the device can run a step; what is kept shows it where nobody says.
    """
    kept = book.list_of(f"{method.name}.probe")
    campaign = _without(
        draw.tests, cut_to_budget(book.list_of(method.name), plan.seconds_of(method.name))
    )
    known = tuple(modes) or _list_modes((*campaign, *kept))
    target: Target = replace(
        draw.make_target(plan.setup, draw.tests), modes=known, acquisition="probe"
    )
    wanted = {trial.key: trial for trial in method.propose(target, campaign).probes}
    found = [seen for seen in kept if seen.trial.key in wanted or _is_doubt(seen, known)]
    return tuple(wanted.values()), tuple(found)


def _is_doubt(seen: Observation, modes: Sequence[str]) -> bool:
    """Whether a probe is more than the seconds of a layer: joules, or how the host issues it."""
    issued = "graph" in modes and seen.trial.execution.mode == "eager"
    return seen.energy_j is not None or issued


def list_learnt(
    book: EvaluationLog, plan: EvaluationPlan, draw: EvaluationNets, name: str
) -> tuple[Observation, ...]:
    """What an estimator has of its campaign and of its probes so far."""
    campaign = _without(draw.tests, cut_to_budget(book.list_of(name), plan.seconds_of(name)))
    return (*campaign, *book.list_of(f"{name}.probe"))


# ---------------------------------------------------------------------------------------------
# Answers


def _answer(
    name: str,
    lesson: TrainingObservations,
    nets: Sequence[NetResult],
    plan: EvaluationPlan,
    draw: EvaluationNets,
) -> tuple[list[NetResult], EstimatorScore]:
    """The nets with an estimator's answers, and its score."""
    method = find_estimator(strip_probe(name))
    learnt = (*lesson.campaign, *lesson.probes)
    by_name = {network.name: network for network in draw.tests}
    networks = [by_name[net.name] for net in nets]
    said = method.fit(learnt).predict(networks, [plan.setup] * len(networks))
    answered = []
    for place, net in enumerate(nets):
        mean_j, variance = float(said.energy_j[place]), float(said.energy_sd_j[place]) ** 2
        answer = NetEstimate(
            mean_j,
            lognormal_interval(mean_j, variance, 0.5),
            lognormal_interval(mean_j, variance, 0.95),
            float(said.duration_s[place]),
        )
        answered.append(replace(net, answers={**net.answers, name: answer}))
    points = sum(map(method.uses, learnt))
    score = score_estimator(name, answered, device_seconds=lesson.device_seconds, points=points)
    return answered, score


def _without(tests: Iterable[Network], seen: Iterable[Observation]) -> tuple[Observation, ...]:
    """Observations of anything but the test nets: a variant may happen to be one."""
    held_out = set(tests)
    return tuple(one for one in seen if one.trial.network not in held_out)


def _charge(seen: Iterable[Observation]) -> float:
    """What the device spent: work, and waiting to be observed."""
    return sum(one.cost_s for one in seen)


def _list_modes(seen: Iterable[Observation]) -> tuple[str, ...]:
    """How a device can run a step, as far as what it ran shows it."""
    return tuple(dict.fromkeys(["eager", *(one.trial.execution.mode for one in seen)]))


def _find_date(book: EvaluationLog) -> str:
    last_s = max(seen.taken_at_s for seen in book.list_all())
    return datetime.fromtimestamp(last_s, UTC).date().isoformat()


def _say_cut(who: str, plan: EvaluationPlan, within: Sequence[Observation]) -> str:
    if not within:
        return f"the campaign of {who}"
    took = f"{sum_work_s(within):.0f} s of {plan.seconds_of(who):.0f} s"
    return f"the rest of the campaign of {who}, which holds {took}"


def _say_nothing_kept(
    profile: Profile, plan: EvaluationPlan, name: str, left_out: Sequence[str]
) -> str:
    if left_out:
        return f"none of the test nets could be measured: {left_out[0]}"
    return (
        f"no test net of this evaluation ({plan.net}, seed {plan.seed}, {name}) is kept for "
        f"{profile.device.name}: run it without --offline first, with the same options"
    )
