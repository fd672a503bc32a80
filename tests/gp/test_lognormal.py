"""Log-normal intervals, quantiles and probabilities agree with each other."""

import math

import numpy as np
import pytest

from joulecast.gp.lognormal import (
    interval_log_sd,
    log_covariance,
    log_variance,
    lognormal_interval,
    lognormal_quantile,
    probability_below,
)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_interval_contains_the_quantity_with_its_level(level):
    low, high = lognormal_interval(2.0, 0.3, level)
    variance = log_variance(2.0, 0.3)
    above, below = (probability_below(math.log(edge / 2.0), variance) for edge in (high, low))
    assert above - below == pytest.approx(level)
    log_sd = interval_log_sd(2.0, (low, high), level)
    assert log_sd == pytest.approx(math.sqrt(variance))
    assert lognormal_quantile(2.0, log_sd, 0.5 + level / 2) == pytest.approx(high)


def test_interval_of_a_nonpositive_mean_starts_at_zero():
    low, high = lognormal_interval(-1.0, 4.0, 0.95)
    assert low == 0.0
    assert high == pytest.approx(1.96 * 2.0, rel=1e-3)


def test_arrays_give_what_floats_give():
    mean, variance = np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.1, 0.2])
    logs = log_variance(mean, variance)
    assert logs == pytest.approx([log_variance(m, v) for m, v in zip(mean, variance, strict=True)])
    assert np.diag(log_covariance(mean, np.diag(variance))) == pytest.approx(logs)
    margins = np.array([-0.1, 0.0, 0.1])
    expected = [probability_below(float(m), float(v)) for m, v in zip(margins, logs, strict=True)]
    assert probability_below(margins, logs) == pytest.approx(expected)


def test_quantity_without_variance_is_below_or_not():
    assert probability_below(0.0, 0.0) == 1.0
    assert probability_below(-1e-9, 0.0) == 0.0
