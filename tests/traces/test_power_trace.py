"""Samples of power: checked, and integrated by the trapezoidal rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.traces.power_trace import make_trace

TIMES = np.arange(200) / 100


@given(st.floats(-5, 5), st.floats(0.1, 50), st.floats(0, 0.9), st.floats(0.01, 1.0))
def test_power_that_grows_linearly_has_the_exact_energy(slope, level, start_s, length_s):
    trace = make_trace(TIMES, level + slope * TIMES)
    end_s = start_s + length_s
    middle_w = level + slope * (start_s + end_s) / 2
    assert trace.find_power(start_s, end_s) == pytest.approx(middle_w, rel=1e-3, abs=1e-3)


def test_samples_of_a_packet_become_their_mean():
    trace = make_trace(np.repeat(TIMES, 3), np.tile([1.0, 2.0, 6.0], len(TIMES)))
    assert trace.times_s == pytest.approx(TIMES)
    assert trace.powers_w == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("times", "powers", "reason"),
    [
        (TIMES[:50], np.ones(50), "only 50 samples"),
        (np.where(TIMES == 1.0, 0.5, TIMES), np.ones(200), "time goes back at sample 101"),
        (TIMES, np.where(TIMES == 1.0, np.nan, 1.0), "not a finite number"),
    ],
)
def test_impossible_samples_are_refused(times, powers, reason):
    with pytest.raises(InputError, match=reason):
        make_trace(times, powers)


def test_missing_samples_are_found():
    keep = (TIMES < 0.5) | (TIMES > 0.8)
    trace = make_trace(TIMES[keep], np.ones(int(keep.sum())))
    assert trace.find_gap(0.0, 0.4) == 0
    assert trace.find_gap(0.3, 1.0) == pytest.approx(0.32)
