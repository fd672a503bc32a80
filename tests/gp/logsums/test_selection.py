"""Conditioning on the observations that matter, and on further ones."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums import selection
from joulecast.gp.logsums.inputs import LogObservations, LogSums
from joulecast.gp.logsums.posterior import condition_logsums, explain_inputs, predict_log_means
from joulecast.gp.logsums.selection import extend_fitted, keep_linearisation, select_rows
from logsums_examples import draw_fitted, draw_inputs


@pytest.fixture(scope="module")
def fitted():
    return keep_linearisation(draw_fitted(np.random.default_rng(0), 400, 300, 60)[0])


@pytest.fixture
def few_are_many(monkeypatch):
    monkeypatch.setattr(selection, "MAX_EXACT_ROWS", 100)


@pytest.mark.parametrize("has_weights", [False, True])
def test_selected_observations_are_nearly_as_good_as_all(fitted, few_are_many, has_weights):
    new = draw_inputs(np.random.default_rng(2), 10, first_identity=1000)
    known = fitted if has_weights else replace(fitted, row_weights=None)
    rows = select_rows(known, new, 200)
    assert 100 < len(rows) <= 200
    exact, _ = explain_inputs(condition_logsums(fitted), new)
    local, _ = explain_inputs(condition_logsums(known, rows), new)
    error = np.sqrt(np.mean((local.log_mean - exact.log_mean) ** 2))
    assert error < (1e-8 if has_weights else 0.03)
    ratio = np.sqrt(local.log_variance / exact.log_variance)
    assert np.median(ratio) < 1.05
    # Fewer observations never make a prediction more certain.
    assert 1.0 - 1e-6 < ratio.min() <= ratio.max() < 1.15
    assert condition_logsums(fitted, np.arange(360)).full is None


def test_every_input_gets_its_rows(fitted, few_are_many, monkeypatch):
    monkeypatch.setattr(selection, "_CHUNK", 7)
    observed = fitted.inputs.take(fitted.observations.sums.counts.column[:40])
    # Its own observation is what matters most for an input.
    assert set(range(40)) <= set(select_rows(fitted, observed, 50).tolist())
    monkeypatch.setattr(selection, "ROWS_PER_INPUT", 1)
    assert len(select_rows(fitted, observed, 101)) <= 101
    assert len(select_rows(fitted, observed, 360)) == 360


def test_local_linearisation_is_close_to_exact(fitted, few_are_many, monkeypatch):
    monkeypatch.setattr(selection, "_MAX_JOINT_ROWS", 100)
    monkeypatch.setattr(selection, "_BATCH", 20)
    local = keep_linearisation(fitted)
    assert local.row_weights is None
    assert local.linear.weights.weight == pytest.approx(fitted.linear.weights.weight, abs=0.05)
    new = draw_inputs(np.random.default_rng(1), 30, first_identity=1000)
    one, two = (predict_log_means(condition_logsums(each), new) for each in (local, fitted))
    assert one == pytest.approx(two, abs=0.02)


@pytest.mark.parametrize("limit", [100, 400])
def test_further_observations_are_conditioned_on(fitted, monkeypatch, limit):
    """As if they had been there from the start: single inputs exactly, sums nearly.

    Of many observations, row weights are corrected for the new ones and those near them alone.
    """
    monkeypatch.setattr(selection, "MAX_EXACT_ROWS", limit)
    monkeypatch.setattr(selection, "LOCAL_ROWS", 120)
    new, size = draw_inputs(np.random.default_rng(4), 6, 500), fitted.inputs.size
    counts = WeightedSums(4, np.array([0, 1, 2, 3, 3, 3]), size + np.arange(6), np.ones(6))
    sums = replace(LogSums.of_counts(counts), identities=900 + np.arange(4))
    known = LogObservations(sums, np.log([2e-3, 3e-3, 4e-3, 8e-3]), np.full(4, 1e-5))
    extended = extend_fitted(fitted, new, known)
    assert len(extended.row_weights) == extended.observations.size == 364
    exact = predict_log_means(condition_logsums(extended), new)
    assert exact[:3] == pytest.approx(np.log([2e-3, 3e-3, 4e-3]), abs=0.1)
    assert np.abs(exact - fitted.predict_mean(new)).max() > 0.3
    assert extended.predict_mean(new) == pytest.approx(exact, abs=0.03)
    others = draw_inputs(np.random.default_rng(1), 30, first_identity=1000)
    one, two = (
        predict_log_means(condition_logsums(each), others)
        for each in (extended, keep_linearisation(extended))
    )
    assert np.median(np.abs(one - two)) < 0.01
