"""What a further observation would gain."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums.inputs import LogObservations, LogSums, append_observations
from joulecast.gp.logsums.posterior import condition_logsums
from joulecast.gp.logsums.totals import expected_variance_reduction, predict_log_totals
from logsums_examples import draw_fitted


def test_reduction_is_what_observing_the_expected_value_achieves():
    """For single inputs it is exact: the variance does not depend on the value observed."""
    fitted, _ = draw_fitted(np.random.default_rng(0), size=30, singles=18, several=0)
    inputs, size = fitted.inputs, fitted.inputs.size
    posterior = condition_logsums(fitted)
    targets = candidates = LogSums.of_single_inputs(size)
    found = expected_variance_reduction(posterior, inputs, targets, candidates, 1e-4)
    before = predict_log_totals(posterior, inputs, targets)
    for at in (0, 7, 29):
        one = candidates.take(np.array([at]))
        known = LogObservations(one, before.log_mean[[at]], np.array([1e-4]))
        updated = replace(fitted, observations=append_observations(fitted.observations, known))
        after = predict_log_totals(condition_logsums(updated), inputs, targets)
        expected = before.log_variance - after.log_variance
        assert found[:, at] == pytest.approx(expected, abs=1e-8)


def test_large_shares_of_a_target_are_worth_most():
    fitted, _ = draw_fitted(np.random.default_rng(1), size=30, singles=10, several=4)
    inputs = fitted.inputs
    observed = set(fitted.observations.sums.counts.column.tolist())
    new = np.array([one for one in range(30) if one not in observed][:3])
    weight = np.array([1.0, 1.0, 1000.0])
    counts = WeightedSums(1, np.zeros(3, int), new, weight)
    structures = WeightedSums(1, np.zeros(1, int), np.zeros(1, int), np.ones(1))
    target = LogSums(counts, structures, np.array([500]))
    candidates = LogSums.of_counts(WeightedSums(3, np.arange(3), new, np.ones(3)))
    found = expected_variance_reduction(condition_logsums(fitted), inputs, target, candidates)
    assert found.shape == (1, 3)
    assert found.argmax() == 2
    assert (found >= 0).all()
