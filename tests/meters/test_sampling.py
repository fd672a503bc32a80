"""Power samples and the thread that takes them: integrals, and every fault is named."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.meters.sampling import Sample, Ticker, integrate
from joulecast.system.errors import MeasurementError


def make_samples(power, start_s=0.0, end_s=10.0, update_interval_s=0.1):
    count = round((end_s - start_s) / update_interval_s) + 1
    times = [start_s + i * update_interval_s for i in range(count)]
    return [Sample(time_s, power(time_s)) for time_s in times]


@given(st.floats(0, 100), st.floats(0, 10), st.floats(1, 4), st.floats(5, 9))
def test_linear_power_is_integrated(offset_w, slope, start_s, end_s):
    """Exact except for the ends of the window, where the nearest sample is used."""
    reading = integrate(make_samples(lambda t: offset_w + slope * t), start_s, end_s)
    true_j = offset_w * (end_s - start_s) + slope * (end_s**2 - start_s**2) / 2
    assert reading.energy_j == pytest.approx(true_j, abs=2 * slope * 0.1**2 + 1e-6)
    assert reading.duration_s == end_s - start_s
    assert reading.faults == ()


def test_samples_outside_the_window_are_ignored():
    samples = make_samples(lambda t: 50.0 if 2.0 <= t <= 7.0 else 1e9)
    assert integrate(samples, 2.0, 7.0).energy_j == pytest.approx(250.0)


STEADY = make_samples(lambda t: 5.0)


@pytest.mark.parametrize(
    ("samples", "window_s", "fault"),
    [
        (STEADY[:30] + STEADY[40:], (2.0, 7.0), "gap"),
        (STEADY[30:], (2.0, 7.0), "gap"),
        (STEADY[:60], (2.0, 7.0), "gap"),
        ([], (2.0, 7.0), "too short"),
        (STEADY, (2.05, 2.25), "too short"),
        # A clock that goes back.
        (STEADY[:50] + STEADY[45:], (2.0, 7.0), "reset"),
        (make_samples(lambda t: 5.0 - t), (2.0, 7.0), "negative"),
    ],
)
def test_faults_are_named(samples, window_s, fault):
    reading = integrate(samples, *window_s)
    assert reading.energy_j >= 0
    assert [one.partition(":")[0] for one in reading.faults] == [fault]


def test_ticker_calls_the_function_until_stopped_and_raises_its_error():
    ticks, enough = [], threading.Event()

    def tick():
        ticks.append(1)
        if len(ticks) == 3:
            enough.set()
            raise MeasurementError("the program failed")

    ticker = Ticker(0.0, tick)
    ticker.start()
    assert enough.wait(10)
    with pytest.raises(MeasurementError, match="the program failed"):
        ticker.stop()
    ticker.stop()
    assert len(ticks) == 3
