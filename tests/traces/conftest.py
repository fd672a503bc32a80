"""One recording for all tests of traces."""

import pytest

from simulated_traces import record_trials


@pytest.fixture(scope="session")
def recording():
    return record_trials(seed=3, count=6)
