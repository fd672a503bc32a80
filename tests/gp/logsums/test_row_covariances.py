"""Kept covariances of observations are those that are computed anew, whatever is forgotten."""

import threading

import numpy as np
import pytest

from joulecast.gp.logsums.posterior import RowCovariances, linearise_observations
from joulecast.gp.logsums.prior import (
    discrepancy_covariance,
    discrepancy_variance,
    log_prior_covariance,
)
from logsums_examples import draw_fitted


@pytest.fixture(scope="module")
def fitted():
    drawn = draw_fitted(np.random.default_rng(0), size=120, singles=80, several=30)[0]
    return linearise_observations(drawn)


@pytest.fixture(scope="module")
def exact(fitted):
    """Return the covariances of all observations, by dense matrices."""
    weights = fitted.linear.weights.to_matrix(fitted.inputs.size)
    cov = log_prior_covariance(fitted.process, fitted.hyper, fitted.inputs, fitted.inputs)
    sums = fitted.observations.sums
    return weights @ cov @ weights.T + discrepancy_covariance(fitted.hyper, sums, sums)


@pytest.mark.parametrize("kept", [200, 60, 5])
def test_covariances_are_exact_whatever_is_kept(fitted, exact, kept):
    covariances, rng = RowCovariances(fitted, kept), np.random.default_rng(1)
    for _ in range(30):
        left, right = (np.sort(rng.choice(110, rng.integers(1, 25), False)) for _ in range(2))
        found = covariances.take(left, right)
        assert found == pytest.approx(exact[np.ix_(left, right)], abs=1e-10)


def test_results_may_be_changed(fitted, exact):
    covariances, rows = RowCovariances(fitted), np.arange(20)
    covariances.take(rows, rows)[:] = 7.0
    assert covariances.take(rows, rows) == pytest.approx(exact[:20, :20], abs=1e-10)


def test_variances_are_the_diagonal(fitted, exact):
    covariances = RowCovariances(fitted)
    assert (discrepancy_variance(fitted.hyper, fitted.observations.sums) > 0).any()
    for rows in (np.arange(30), np.arange(10, 110)):
        assert covariances.take_variances(rows) == pytest.approx(np.diag(exact)[rows], abs=1e-10)


def test_threads_do_not_disturb_each_other(fitted, exact):
    covariances, wrong = RowCovariances(fitted, 40), []

    def ask(seed):
        rng = np.random.default_rng(seed)
        for _ in range(40):
            rows = np.sort(rng.choice(110, 20, False))
            if not np.allclose(covariances.take(rows, rows), exact[np.ix_(rows, rows)]):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
