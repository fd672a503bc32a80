"""Kept linearisations, and further observations."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums import selection as local_rows
from joulecast.gp.logsums import selection as relinearisation
from joulecast.gp.logsums.inputs import LogObservations, LogSums, append_inputs
from joulecast.gp.logsums.posterior import condition_logsums
from joulecast.gp.logsums.selection import extend_fitted, keep_linearisation
from joulecast.gp.logsums.totals import predict_inputs
from logsums_examples import draw_fitted, draw_inputs


@pytest.fixture(scope="module")
def fitted():
    return draw_fitted(np.random.default_rng(0), size=300, singles=220, several=60)[0]


def predict(fitted):
    new = draw_inputs(np.random.default_rng(1), 30, first_identity=1000)
    return predict_inputs(condition_logsums(fitted), new)


def test_kept_linearisation_predicts_the_same(fitted):
    one, two = predict(fitted), predict(keep_linearisation(fitted))
    assert one.log_mean == pytest.approx(two.log_mean, abs=1e-10)
    assert one.log_variance == pytest.approx(two.log_variance, abs=1e-10)


def test_local_linearisation_is_close_to_exact(fitted, monkeypatch):
    exact = keep_linearisation(fitted)
    monkeypatch.setattr(relinearisation, "_MAX_JOINT_ROWS", 100)
    monkeypatch.setattr(relinearisation, "_BATCH", 20)
    local = keep_linearisation(fitted)
    assert local.row_weights is None
    assert local.linear.weights.weight == pytest.approx(exact.linear.weights.weight, abs=0.05)
    assert predict(local).log_mean == pytest.approx(predict(exact).log_mean, abs=0.02)


def test_further_observations_are_conditioned_on(fitted):
    """As if they had been there from the start: single inputs exactly, sums nearly."""
    rng = np.random.default_rng(2)
    new = draw_inputs(rng, 6, first_identity=500)
    first = fitted.inputs.size
    row = np.array([0, 1, 2, 3, 3, 3])
    counts = WeightedSums(4, row, first + np.arange(6), np.ones(6))
    sums = replace(LogSums.of_counts(counts), identities=900 + np.arange(4))
    known = LogObservations(sums, np.log([2e-3, 3e-3, 4e-3, 8e-3]), np.full(4, 1e-5))
    kept = extend_fitted(keep_linearisation(fitted), new, known)
    again = extend_fitted(fitted, new, known)
    assert kept.observations.size == fitted.observations.size + 4
    assert again.linear is None
    one, two = predict(kept), predict(again)
    assert one.log_mean == pytest.approx(two.log_mean, abs=0.02)
    seen = predict_inputs(condition_logsums(kept), new.take(np.arange(3)))
    assert seen.log_mean == pytest.approx(np.log([2e-3, 3e-3, 4e-3]), abs=0.1)


def test_means_of_many_observations_follow_further_ones(fitted, monkeypatch):
    """Row weights are corrected for the new observations and those near them alone."""
    monkeypatch.setattr(local_rows, "MAX_EXACT_ROWS", 100)
    monkeypatch.setattr(local_rows, "LOCAL_ROWS", 120)
    rng = np.random.default_rng(4)
    new, size = draw_inputs(rng, 6, first_identity=500), fitted.inputs.size
    counts = WeightedSums(4, np.array([0, 1, 2, 3, 3, 3]), size + np.arange(6), np.ones(6))
    sums = replace(LogSums.of_counts(counts), identities=900 + np.arange(4))
    known = LogObservations(sums, np.log([2e-3, 3e-3, 4e-3, 8e-3]), np.full(4, 1e-5))
    kept = keep_linearisation(fitted)
    extended = extend_fitted(kept, new, known)
    assert len(extended.row_weights) == extended.observations.size
    exact = predict_inputs(condition_logsums(extended), new).log_mean
    before = kept.mean.predict(new)
    assert np.abs(exact - before).max() > 0.3
    assert extended.mean.predict(new) == pytest.approx(exact, abs=0.03)


def test_appended_inputs_keep_caps_only_if_all_have_them():
    rng = np.random.default_rng(3)
    one, two = draw_inputs(rng, 3, caps=True), draw_inputs(rng, 2, 10, caps=True)
    assert len(append_inputs(one, two).log_caps) == 5
    assert append_inputs(one, replace(two, log_caps=None)).log_caps is None
