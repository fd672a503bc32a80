"""A store and a simulated device."""

import pytest

from campaign_examples import make_simulated_measurer
from joulecast.store import open_store


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite") as opened:
        yield opened


@pytest.fixture
def measurer():
    with make_simulated_measurer() as opened:
        yield opened
