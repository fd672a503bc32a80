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


def name_faults(samples, start_s=2.0, end_s=7.0):
    reading = integrate(samples, start_s, end_s)
    assert reading.energy_j >= 0
    return [fault.partition(":")[0] for fault in reading.faults]


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


def test_missing_samples_are_a_gap():
    samples = make_samples(lambda t: 5.0)
    assert name_faults(samples[:30] + samples[40:]) == ["gap"]
    assert name_faults(samples[30:]) == ["gap"]
    assert name_faults(samples[:60]) == ["gap"]


def test_few_samples_are_too_short():
    assert name_faults([]) == ["too short"]
    assert name_faults(make_samples(lambda t: 5.0), 2.05, 2.25) == ["too short"]


def test_clock_that_goes_back_is_a_reset():
    samples = make_samples(lambda t: 5.0)
    assert name_faults([*samples[:50], *samples[45:]]) == ["reset"]


def test_negative_power_is_a_fault():
    assert name_faults(make_samples(lambda t: 5.0 - t)) == ["negative"]


def test_ticker_calls_the_function_until_stopped():
    many = 3
    ticks = []
    enough = threading.Event()

    def tick():
        ticks.append(1)
        if len(ticks) >= many:
            enough.set()

    ticker = Ticker(0.0, tick)
    ticker.start()
    assert enough.wait(10)
    ticker.stop()
    count = len(ticks)
    ticker.stop()
    assert len(ticks) == count >= many


def test_stop_raises_the_error_of_the_function():
    ended = threading.Event()

    def tick():
        ended.set()
        raise MeasurementError("the program failed")

    ticker = Ticker(0.0, tick)
    ticker.start()
    assert ended.wait(10)
    with pytest.raises(MeasurementError, match="the program failed"):
        ticker.stop()
    ticker.stop()
