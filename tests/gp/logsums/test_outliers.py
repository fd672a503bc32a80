"""Observations that all others contradict count next to nothing."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.logsums import fit as outliers
from joulecast.gp.logsums.fit import discount_outliers, fit_logsums
from joulecast.gp.logsums.selection import keep_linearisation
from logsums_examples import draw_fitted

CLIFF = 7


@pytest.fixture
def fitted(monkeypatch):
    monkeypatch.setattr(outliers, "_FEWEST_ROWS", 50)
    found, _ = draw_fitted(np.random.default_rng(0), size=120, singles=100, several=20)
    return keep_linearisation(found)


def slow_down(fitted, rows, factor):
    """Return the process with some observations that took so many times as long."""
    log_values = fitted.observations.log_values.copy()
    log_values[rows] += np.log(factor)
    observations = replace(fitted.observations, log_values=log_values)
    return keep_linearisation(replace(fitted, observations=observations))


def test_ordinary_observations_are_kept(fitted):
    assert discount_outliers(fitted) is None


def test_outlier_gets_the_variance_of_its_residual(fitted):
    found = discount_outliers(slow_down(fitted, [CLIFF], 1000.0))
    added = found.log_variance - fitted.observations.log_variance
    assert np.flatnonzero(added).tolist() == [CLIFF]
    assert added[CLIFF] == pytest.approx(np.log(1000.0) ** 2, rel=0.5)


def test_few_observations_all_count(fitted, monkeypatch):
    monkeypatch.setattr(outliers, "_FEWEST_ROWS", 1000)
    assert discount_outliers(slow_down(fitted, [CLIFF], 1000.0)) is None


def test_one_outlier_does_not_change_the_fit(fitted):
    plain, slow = (
        fit_logsums(one.process, one.inputs, one.observations)
        for one in (fitted, slow_down(fitted, [CLIFF], 1000.0))
    )
    others = np.arange(fitted.inputs.size) != fitted.observations.sums.counts.column[CLIFF]
    expected, found = (one.mean.predict(one.inputs)[others] for one in (plain, slow))
    assert found == pytest.approx(expected, abs=0.25)
    assert np.abs(found - expected).mean() < 0.05
