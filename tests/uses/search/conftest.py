"""Screeners of a small cnn5 space on a simulated device."""

from __future__ import annotations

import pytest

from joulecast.budgets import RunLength, parse_budget
from joulecast.records import Setup
from joulecast.uses.search import make_screener, make_search_space

SETUP = Setup(batch=32)
LENGTH = RunLength(100)


@pytest.fixture(scope="module")
def make_cnn_screener(cnn_profile):
    def make(budget, confidence=0.9, length=LENGTH, **vary):
        space = make_search_space("cnn5", SETUP, vary, (3, 32, 32))
        limit = parse_budget(budget, length)
        return make_screener(cnn_profile, space, limit, length, confidence=confidence)

    return make
