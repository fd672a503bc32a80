"""Evaluate estimators on the same random networks of a family, measured on one device.

    test networks ─pass 1─▶ campaign and probes of each estimator ─▶ pass 2 ─▶ fit, predict, score

    evaluation_plan.py        the family, its random networks, the estimators and their device time
    evaluation_run.py         ``evaluate``: measures what is not stored yet, then evaluates
    stored_evaluation.py      ``evaluate_stored``: evaluates stored observations without a device
    evaluation_log.py         observations of an evaluation, distinguished by run tags
    campaign_budget.py        device time of a campaign
    training_observations.py  observations that an estimator is fitted to
    measured_nets.py          measurements of the test networks
    scores.py                 errors, coverage and widths
    evaluation.py             records of a result
    evaluation_plots.py       plots of a result

The reference energy of a network is the mean of two passes at different times; their difference is
the noise. No estimator learns from the energy of a test network. Every observation is stored at
once and never measured again, so an interrupted evaluation continues where it stopped, and a
finished one can be evaluated again with better estimators at no cost.
"""

from joulecast.uses.evaluate.evaluation import EstimatorScore, Evaluation, NetEstimate, NetResult
from joulecast.uses.evaluate.evaluation_plan import (
    NO_PROBE,
    EvaluationPlan,
    check_family,
    list_estimators,
    name_evaluation,
)
from joulecast.uses.evaluate.evaluation_run import evaluate, measure_evaluation
from joulecast.uses.evaluate.stored_evaluation import evaluate_stored

__all__ = [
    "NO_PROBE",
    "EstimatorScore",
    "Evaluation",
    "EvaluationPlan",
    "NetEstimate",
    "NetResult",
    "check_family",
    "evaluate",
    "evaluate_stored",
    "list_estimators",
    "measure_evaluation",
    "name_evaluation",
]
