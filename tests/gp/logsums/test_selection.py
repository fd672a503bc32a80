"""Conditioning on the observations that matter."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums import selection as local_rows
from joulecast.gp.logsums import selection as relinearisation
from joulecast.gp.logsums.inputs import LogObservations, LogSums
from joulecast.gp.logsums.posterior import condition_logsums, linearise_observations
from joulecast.gp.logsums.selection import (
    condition_for,
    condition_on_rows,
    extend_fitted,
    keep_linearisation,
    select_rows,
)
from joulecast.gp.logsums.totals import predict_inputs
from logsums_examples import draw_fitted, draw_inputs


@pytest.fixture(scope="module")
def fitted():
    return draw_fitted(np.random.default_rng(0), size=400, singles=300, several=60)[0]


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


@pytest.fixture(scope="module")
def fitted_relinearisation():
    return draw_fitted(np.random.default_rng(0), size=300, singles=220, several=60)[0]


def predict(fitted_relinearisation):
    new = draw_inputs(np.random.default_rng(1), 30, first_identity=1000)
    return predict_inputs(condition_logsums(fitted_relinearisation), new)


def test_kept_linearisation_predicts_the_same(fitted_relinearisation):
    one, two = predict(fitted_relinearisation), predict(keep_linearisation(fitted_relinearisation))
    assert one.log_mean == pytest.approx(two.log_mean, abs=1e-10)
    assert one.log_variance == pytest.approx(two.log_variance, abs=1e-10)


def test_local_linearisation_is_close_to_exact(fitted_relinearisation, monkeypatch):
    exact = keep_linearisation(fitted_relinearisation)
    monkeypatch.setattr(relinearisation, "_MAX_JOINT_ROWS", 100)
    monkeypatch.setattr(relinearisation, "_BATCH", 20)
    local = keep_linearisation(fitted_relinearisation)
    assert local.row_weights is None
    assert local.linear.weights.weight == pytest.approx(exact.linear.weights.weight, abs=0.05)
    assert predict(local).log_mean == pytest.approx(predict(exact).log_mean, abs=0.02)


def test_further_observations_are_conditioned_on(fitted_relinearisation):
    """As if they had been there from the start: single inputs exactly, sums nearly."""
    rng = np.random.default_rng(2)
    new = draw_inputs(rng, 6, first_identity=500)
    first = fitted_relinearisation.inputs.size
    row = np.array([0, 1, 2, 3, 3, 3])
    counts = WeightedSums(4, row, first + np.arange(6), np.ones(6))
    sums = replace(LogSums.of_counts(counts), identities=900 + np.arange(4))
    known = LogObservations(sums, np.log([2e-3, 3e-3, 4e-3, 8e-3]), np.full(4, 1e-5))
    kept = extend_fitted(keep_linearisation(fitted_relinearisation), new, known)
    again = extend_fitted(fitted_relinearisation, new, known)
    assert kept.observations.size == fitted_relinearisation.observations.size + 4
    assert again.linear is None
    one, two = predict(kept), predict(again)
    assert one.log_mean == pytest.approx(two.log_mean, abs=0.02)
    seen = predict_inputs(condition_logsums(kept), new.take(np.arange(3)))
    assert seen.log_mean == pytest.approx(np.log([2e-3, 3e-3, 4e-3]), abs=0.1)


def test_means_of_many_observations_follow_further_ones(fitted_relinearisation, monkeypatch):
    """Row weights are corrected for the new observations and those near them alone."""
    monkeypatch.setattr(local_rows, "MAX_EXACT_ROWS", 100)
    monkeypatch.setattr(local_rows, "LOCAL_ROWS", 120)
    rng = np.random.default_rng(4)
    new, size = draw_inputs(rng, 6, first_identity=500), fitted_relinearisation.inputs.size
    counts = WeightedSums(4, np.array([0, 1, 2, 3, 3, 3]), size + np.arange(6), np.ones(6))
    sums = replace(LogSums.of_counts(counts), identities=900 + np.arange(4))
    known = LogObservations(sums, np.log([2e-3, 3e-3, 4e-3, 8e-3]), np.full(4, 1e-5))
    kept = keep_linearisation(fitted_relinearisation)
    extended = extend_fitted(kept, new, known)
    assert len(extended.row_weights) == extended.observations.size
    exact = predict_inputs(condition_logsums(extended), new).log_mean
    before = kept.mean.predict(new)
    assert np.abs(exact - before).max() > 0.3
    assert extended.mean.predict(new) == pytest.approx(exact, abs=0.03)
