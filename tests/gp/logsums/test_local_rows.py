"""Conditioning on the observations that matter."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums import selection as local_rows
from joulecast.gp.logsums.inputs import LogSums
from joulecast.gp.logsums.posterior import condition_logsums, linearise_observations
from joulecast.gp.logsums.selection import (
    condition_for,
    condition_on_rows,
    find_rows,
    select_rows,
)
from joulecast.gp.logsums.totals import predict_inputs
from logsums_examples import draw_fitted, draw_inputs


@pytest.fixture(scope="module")
def fitted():
    return draw_fitted(np.random.default_rng(0), size=400, singles=300, several=60)[0]


def test_all_rows_are_selected_if_they_are_few(fitted):
    new = draw_inputs(np.random.default_rng(1), 20, first_identity=1000)
    assert (select_rows(fitted, new, limit=500) == np.arange(360)).all()
    exact = predict_inputs(condition_logsums(fitted), new)
    assert len(find_rows(fitted, new)) == 360
    assert predict_inputs(condition_for(fitted, new), new).log_mean == pytest.approx(
        exact.log_mean, abs=1e-12
    )


def test_local_conditioning_is_close_to_exact(fitted):
    new = draw_inputs(np.random.default_rng(2), 10, first_identity=1000)
    exact = predict_inputs(condition_logsums(fitted), new)
    local = predict_inputs(condition_logsums(fitted, select_rows(fitted, new, limit=200)), new)
    assert np.sqrt(np.mean((local.log_mean - exact.log_mean) ** 2)) < 0.03
    ratio = np.sqrt(local.log_variance / exact.log_variance)
    assert np.median(ratio) < 1.05
    # Fewer observations never make a prediction more certain.
    assert 1.0 - 1e-6 < ratio.min() <= ratio.max() < 1.15


def test_many_observations_give_exact_means_and_local_variances(fitted, monkeypatch):
    monkeypatch.setattr(local_rows, "MAX_EXACT_ROWS", 100)
    kept = linearise_observations(fitted)
    new = draw_inputs(np.random.default_rng(2), 10, first_identity=1000)
    posterior = condition_for(kept, new, limit=120)
    assert 100 < posterior.sums.size <= 120
    exact, local = (predict_inputs(each, new) for each in (condition_logsums(kept), posterior))
    assert local.log_mean == pytest.approx(exact.log_mean, abs=1e-8)
    ratio = np.sqrt(local.log_variance / exact.log_variance)
    assert 1.0 - 1e-6 < ratio.min() <= ratio.max() < 1.25
    everything = condition_on_rows(kept, np.arange(360))
    assert everything.full_mean is None


def test_every_input_gets_its_rows(fitted, monkeypatch):
    monkeypatch.setattr(local_rows, "_CHUNK", 7)
    observed = fitted.inputs.take(fitted.observations.sums.counts.column[:40])
    rows = select_rows(fitted, observed, limit=50, per_query=3)
    # Its own observation is what matters most for an input.
    assert set(range(40)) <= set(rows.tolist())
    assert len(select_rows(fitted, observed, limit=100, per_query=1)) <= 100


def test_sums_of_the_same_structure_are_selected(fitted):
    """Their discrepancy is known from observations that share no input with the query."""
    new = draw_inputs(np.random.default_rng(3), 3, first_identity=1000)
    counts = WeightedSums(1, np.zeros(3, int), np.arange(3), np.ones(3))
    structures = WeightedSums(1, np.zeros(1, int), np.ones(1, int), np.ones(1))
    query = LogSums(counts, structures, np.array([5000]))
    large = replace(fitted, theta=fitted.process.prior.means.copy())
    large.theta[-3] = np.log(2.0)
    rows = select_rows(large, new, query, limit=15, per_query=4)
    sums = fitted.observations.sums.take(rows)
    assert (sums.structures.column == 1).all()
    assert len(sums.structures.column) >= 6
