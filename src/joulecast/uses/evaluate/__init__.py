"""Judging estimators by the same random nets of a family on one device.

    test nets ──pass 1──▶ campaign of each estimator, its probes ──▶ pass 2 ──▶ fit, predict, score
                                │
                     other nets of the family

    plan.py     what is evaluated: the family, its random nets, the estimators and their seconds
    book.py     what is kept of it in the store, told apart by run tags; budgets
    run.py      ``evaluate``: measures whatever is not kept yet, then judges
    judge.py    ``evaluate_stored``: from what is kept to an Evaluation, without a device
    truth.py    what the test nets took
    scores.py   the numbers that errors and intervals come down to
    result.py   the records of a result

A net's truth is the mean of two passes at different times; what the passes differ by is the noise
floor. No estimator learns from a test net's energy. Whatever is measured is stored at once and
never measured again, so that an evaluation that was cut goes on where it was, and a finished one
can be judged anew, by better estimators, for nothing. The rig is given; this package makes none.
"""

from joulecast.uses.evaluate.evaluation import EstimatorScore, Evaluation, NetEstimate, NetResult
from joulecast.uses.evaluate.evaluation_plan import (
    NO_PROBE,
    EvaluationPlan,
    check_family,
    list_estimators,
    name_evaluation,
)
from joulecast.uses.evaluate.evaluation_run import Stage, evaluate
from joulecast.uses.evaluate.stored_evaluation import evaluate_stored

__all__ = [
    "NO_PROBE",
    "Answer",
    "Evaluation",
    "NetResult",
    "Plan",
    "Score",
    "Stage",
    "check_family",
    "evaluate",
    "judge",
    "list_estimators",
    "name_evaluation",
]
