"""Scores of estimators."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.gp.lognormal import lognormal_interval
from joulecast.uses.evaluate import NetEstimate, NetResult
from joulecast.uses.evaluate.scores import compute_noise_percent, score_estimator


def make_net(passes_j, estimate_j, sd_j=0.0, name="mine"):
    measured_j = sum(passes_j) / len(passes_j)
    intervals = [lognormal_interval(estimate_j, sd_j**2, level) for level in (0.5, 0.95)]
    estimate = NetEstimate(estimate_j, *intervals, 2.0)
    return NetResult("net", tuple(passes_j), measured_j, 2.0, 1.0, {name: estimate})


def score(nets):
    return score_estimator("mine", nets, device_seconds=1.0, points=1)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_perfect_estimator_has_no_error_and_full_coverage(measured_j):
    found = score([make_net((one, one), one) for one in measured_j])
    zeros = ("mape", "bias", "median", "p90", "max", "width50", "width95", "noise", "time_mape")
    assert all(getattr(found, f"{name}_percent") == 0.0 for name in zeros)
    shares = ("within5", "within10", "coverage50", "coverage95")
    assert all(getattr(found, f"{name}_percent") == 100.0 for name in shares)


@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.0, 3.0)), min_size=1, max_size=9))
def test_scores_are_ordered_and_independent_of_the_unit(rows):
    found = score([make_net((1.0,), estimate_j, sd_j) for estimate_j, sd_j in rows])
    assert abs(found.bias_percent) <= found.mape_percent * (1 + 1e-9)
    assert found.median_percent <= found.p90_percent <= found.max_percent
    assert found.within5_percent <= found.within10_percent
    assert found.coverage50_percent <= found.coverage95_percent
    assert found.width50_percent <= found.width95_percent
    assert found.noise_percent is None
    scaled = [make_net((1024.0,), 1024 * estimate_j, 1024 * sd_j) for estimate_j, sd_j in rows]
    assert score(scaled).mape_percent == pytest.approx(found.mape_percent)
    assert score(scaled).width95_percent == pytest.approx(found.width95_percent)


def test_noise_is_the_median_difference_of_two_passes():
    nets = [make_net((9.0, 11.0), 10.0), make_net((1.0, 1.0), 1.0), make_net((3.0, 1.0), 2.0)]
    assert compute_noise_percent(nets) == pytest.approx(20.0)
    assert compute_noise_percent([make_net((1.0,), 1.0)]) is None
    assert compute_noise_percent([]) is None
