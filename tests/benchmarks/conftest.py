"""Make the rivals known for the time of a test."""

import sys

import pytest

from benchmarks.common import use_rivals
from joulecast.system.plugins import load_plugins


@pytest.fixture
def rivals(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    use_rivals()
    yield
    load_plugins.cache_clear()
