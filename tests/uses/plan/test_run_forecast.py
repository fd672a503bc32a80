"""Energy and duration of a run have their own uncertainties."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.uses.plan import RunForecast


def test_energy_and_duration_have_their_own_uncertainty():
    run = RunForecast(1000.0, 100.0, 0.5, 0.0, rest_w=5.0)
    low_j, high_j = run.energy_interval(0.95)
    # The duration is certain, and so is the energy of the rest of the device.
    assert high_j - 500 == pytest.approx(1000 * math.exp(1.96 * 0.5), rel=1e-3)
    assert low_j - 500 == pytest.approx(1000 * math.exp(-1.96 * 0.5), rel=1e-3)
    certain = replace(run, energy_log_sd=0.0)
    assert certain.energy_interval(0.95) == pytest.approx((1500, 1500))
    assert (certain.probability_below(1500.1), certain.probability_below(1499.9)) == (1.0, 0.0)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 50.0), st.floats(0.01, 0.99))
def test_probabilities_are_the_inverse_of_quantiles(energy_sd, duration_sd, rest_w, probability):
    run = RunForecast(1000.0, 100.0, energy_sd, duration_sd, rest_w)
    if energy_sd > 0.01:
        found = run.probability_below(run.energy_quantile(probability))
        assert found == pytest.approx(probability, abs=1e-6)
    assert run.energy_quantile(0.5) == pytest.approx(1000 + 100 * rest_w)
