"""MAP estimates of the hyper-parameters."""

import numpy as np
import pytest

from joulecast.gp.logsums.fit import fit_logsums, select_subset
from joulecast.gp.logsums.inputs import LogObservations
from joulecast.gp.logsums.posterior import condition_logsums
from joulecast.gp.logsums.totals import predict_log_totals
from logsums_examples import draw_fitted


def test_fit_finds_what_the_observations_were_drawn_from():
    fitted, _ = draw_fitted(np.random.default_rng(0), size=150, singles=130, several=40)
    found = fit_logsums(fitted.process, fitted.inputs, fitted.observations)
    assert found.hyper.noise_sd == pytest.approx(0.02, rel=0.7)
    assert found.hyper.terms[3].variance == pytest.approx(0.25, rel=0.7)
    assert found.linear is not None
    predicted = predict_log_totals(condition_logsums(found), found.inputs, found.observations.sums)
    assert predicted.log_mean == pytest.approx(found.observations.log_values, abs=0.15)


def test_single_inputs_are_fitted_in_one_round():
    fitted, _ = draw_fitted(np.random.default_rng(1), size=60, singles=60, several=0)
    found = fit_logsums(fitted.process, fitted.inputs, fitted.observations)
    assert np.isfinite(found.theta).all()


def test_subset_has_all_strata_and_few_inputs():
    fitted, _ = draw_fitted(np.random.default_rng(2), size=200, singles=150, several=100)
    sums = fitted.observations.sums
    strata = np.where(np.arange(250) < 240, 0, np.arange(250))
    observations = LogObservations(sums, np.zeros(250), np.zeros(250), strata)
    rows = select_subset(observations, 60)
    assert len(rows) == 60
    assert set(range(240, 250)) <= set(rows.tolist())
    rows = select_subset(observations, 250, max_inputs=40)
    several = sums.take(rows[rows >= 150])
    assert len(np.unique(several.counts.column)) <= 40


def test_subset_without_large_sums():
    fitted, _ = draw_fitted(np.random.default_rng(3), size=200, singles=50, several=100)
    counts = fitted.observations.sums.counts
    inputs = np.bincount(counts.row, minlength=counts.size)
    rows = select_subset(fitted.observations, 150, max_row_inputs=2)
    assert inputs.max() > 2 and len(rows) == np.count_nonzero(inputs <= 2)
    assert inputs[rows].max() <= 2
