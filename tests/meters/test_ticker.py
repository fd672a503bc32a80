"""The thread that calls a function periodically."""

import threading

import pytest

from joulecast.errors import MeasurementError
from joulecast.meters.sampling import Ticker


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
