"""Conditioning on the observations that matter."""

import numpy as np
import pytest

from joulecast.gp.logsums import local_rows
from joulecast.gp.logsums.local_rows import (
    condition_for,
    condition_locally,
    select_rows,
)
from joulecast.gp.logsums.posterior import condition_logsums
from joulecast.gp.logsums.totals import predict_inputs
from logsums_examples import draw_fitted, draw_inputs


@pytest.fixture(scope="module")
def fitted():
    return draw_fitted(np.random.default_rng(0), size=400, singles=300, several=60)[0]


def test_all_rows_are_selected_if_they_are_few(fitted):
    new = draw_inputs(np.random.default_rng(1), 20, first_identity=1000)
    assert (select_rows(fitted, new, 500) == np.arange(360)).all()
    exact = predict_inputs(condition_logsums(fitted), new)
    local = predict_inputs(condition_locally(fitted, new, 360), new)
    assert local.log_mean == pytest.approx(exact.log_mean, abs=1e-12)
    assert predict_inputs(condition_for(fitted, new), new).log_mean == pytest.approx(
        exact.log_mean, abs=1e-12
    )


def test_local_conditioning_is_close_to_exact(fitted):
    new = draw_inputs(np.random.default_rng(2), 10, first_identity=1000)
    exact = predict_inputs(condition_logsums(fitted), new)
    local = predict_inputs(condition_locally(fitted, new, 200), new)
    assert np.sqrt(np.mean((local.log_mean - exact.log_mean) ** 2)) < 0.03
    assert np.sqrt(local.log_variance) == pytest.approx(np.sqrt(exact.log_variance), rel=0.08)


def test_every_input_gets_its_rows(fitted, monkeypatch):
    monkeypatch.setattr(local_rows, "_CHUNK", 7)
    observed = fitted.inputs.take(fitted.observations.sums.counts.column[:40])
    rows = select_rows(fitted, observed, 50, per_input=3)
    # Its own observation is what matters most for an input.
    assert set(range(40)) <= set(rows.tolist())
    assert len(select_rows(fitted, observed, 100, per_input=1)) <= 100
