"""Evaluate stored observations, without a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from joulecast.errors import MissingError
from joulecast.estimators import find_estimator
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import Profile
from joulecast.uses.evaluate.evaluation import EstimatorScore, Evaluation, NetEstimate, NetResult
from joulecast.uses.evaluate.evaluation_log import PASSES, EvaluationLog
from joulecast.uses.evaluate.evaluation_plan import (
    EvaluationNets,
    EvaluationPlan,
    draw_nets,
    name_evaluation,
    strip_probe,
)
from joulecast.uses.evaluate.measured_nets import summarise_test_nets
from joulecast.uses.evaluate.scores import compute_noise_percent, score_estimator
from joulecast.uses.evaluate.training_observations import (
    TrainingObservations,
    find_training_observations,
)


def evaluate_stored(
    profile: Profile, plan: EvaluationPlan, left_out: Sequence[str] = ()
) -> Evaluation:
    """Evaluate estimators on the observations of a profile.

    Args:
        profile: The device and its observations.
        plan: What to evaluate.
        left_out: Trials that are known to have failed, with the reason.

    Raises:
        MissingError: No test network was measured yet, or no estimator can be fitted.
    """
    log = EvaluationLog(name_evaluation(plan, profile.key), profile.observations)
    drawn = draw_nets(plan)
    nets, missing = summarise_test_nets(log, plan, drawn)
    if not nets:
        raise MissingError(_explain_no_nets(profile, plan, log.name, left_out))
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
        date=_find_date(log),
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


def _find_date(log: EvaluationLog) -> str:
    last_s = max(one.taken_at_s for one in log.list_all())
    return datetime.fromtimestamp(last_s, UTC).date().isoformat()


def _explain_no_nets(
    profile: Profile, plan: EvaluationPlan, name: str, left_out: Sequence[str]
) -> str:
    if left_out:
        return f"no test network could be measured: {left_out[0]}"
    return (
        f"the store has no test network of this evaluation ({plan.family}, seed {plan.seed}, "
        f"{name}) on {profile.device.name}: run it without --offline first, with the same options"
    )
