"""Keep the linearisation of all observations, so that conditioning on some needs one step.

A fit linearises every sum around its posterior once. Later observations are linearised around what
the earlier ones say of them; those of single inputs are exact anyway.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joulecast.gp.linalg import Ints
from joulecast.gp.logsums.linearisation import LinearSums, linearise
from joulecast.gp.logsums.local_rows import condition_on_rows, find_rows, select_rows
from joulecast.gp.logsums.log_inputs import (
    LogInputs,
    LogObservations,
    append_inputs,
    append_observations,
    append_rows,
)
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    condition_logsums,
    correct_row_weights,
    linearise_observations,
)
from joulecast.gp.logsums.prior_mean import prior_log_mean
from joulecast.gp.logsums.totals import linearise_prediction

# Up to so many observations and inputs, all are linearised around their joint posterior: 3,000 of
# 7,000 take half a minute and 1.5 gigabytes, 4,400 of 10,000 a minute and 3.
_MAX_JOINT_ROWS, _MAX_JOINT_INPUTS = 6000, 14_000
# Sums that are linearised around one local posterior.
_BATCH = 50


def keep_linearisation(fitted: FittedLogSums) -> FittedLogSums:
    """Return the process with all observations linearised around their posterior."""
    fitted = replace(fitted, linear=None, row_weights=None)
    counts = fitted.observations.sums.counts
    if fitted.observations.size <= _MAX_JOINT_ROWS and fitted.inputs.size <= _MAX_JOINT_INPUTS:
        return linearise_observations(fitted)
    start = prior_log_mean(fitted.inputs, fitted.hyper.coefficients)
    linear = linearise(counts, start)
    weight, offsets = linear.weights.weight.copy(), linear.offsets.copy()
    for rows in _list_batches(fitted):
        part = _linearise_locally(fitted, rows)
        offsets[rows] = part.offsets
        weight[np.isin(counts.row, rows)] = part.weights.weight
    return replace(fitted, linear=LinearSums(replace(counts, weight=weight), offsets))


def extend_fitted(
    fitted: FittedLogSums, inputs: LogInputs, observations: LogObservations
) -> FittedLogSums:
    """Return the process with further observations, its hyper-parameters unchanged.

    Args:
        fitted: The process.
        inputs: Inputs that it was not observed through before.
        observations: Sums over its inputs and, after them, these.
    """
    together = append_inputs(fitted.inputs, inputs)
    all_rows = append_observations(fitted.observations, observations)
    extended = replace(fitted, inputs=together, observations=all_rows, row_weights=None)
    if fitted.linear is None:
        return extended
    used, sums = observations.sums.narrow()
    needed = together.take(used)
    near = find_rows(fitted, needed)
    linear = linearise_prediction(condition_on_rows(fitted, near), needed, sums.counts)
    counts = observations.sums.counts
    weights = append_rows(fitted.linear.weights, replace(counts, weight=linear.weights.weight))
    offsets = np.concatenate([fitted.linear.offsets, linear.offsets])
    extended = replace(extended, linear=LinearSums(weights, offsets))
    if fitted.row_weights is None:
        return extended
    row_weights = np.concatenate([fitted.row_weights, np.zeros(observations.size)])
    new = np.arange(fitted.observations.size, all_rows.size)
    extended = replace(extended, row_weights=row_weights)
    return correct_row_weights(extended, np.concatenate([near, new]))


def _linearise_locally(fitted: FittedLogSums, rows: Ints) -> LinearSums:
    used, sums = fitted.observations.sums.take(rows).narrow()
    inputs = fitted.inputs.take(used)
    posterior = condition_logsums(fitted, select_rows(fitted, inputs))
    return linearise_prediction(posterior, inputs, sums.counts)


def _list_batches(fitted: FittedLogSums) -> list[Ints]:
    """Return the sums of several inputs, those of equal structures together; each ascending."""
    sums = fitted.observations.sums
    lengths = np.bincount(sums.counts.row, minlength=sums.size)
    structure = np.full(sums.size, -1)
    structure[sums.structures.row] = sums.structures.column
    order = np.argsort(structure, kind="stable")
    order = order[lengths[order] > 1]
    return [np.sort(order[at : at + _BATCH]) for at in range(0, len(order), _BATCH)]
