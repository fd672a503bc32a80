"""Device time of campaigns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.families import make_family
from joulecast.records import Observation, Setup, Trial
from joulecast.uses.evaluate.campaign_budget import cut_to_budget, is_budget_spent, sum_work_s

NETWORK, SETUP = make_family("lenet5"), Setup(batch=8)
IDLE = Observation(Trial(replace(NETWORK, layers=()), SETUP), duration_s=1.0)


def make_observations(costs_s):
    return [Observation(Trial(NETWORK, SETUP), 1.0, duration_s=1.0, cost_s=c) for c in costs_s]


@given(st.lists(st.floats(0.1, 9.0), max_size=12), st.floats(0.1, 40.0), st.integers(0, 12))
def test_cut_campaign_equals_one_with_the_smaller_budget(costs_s, seconds, idle_place):
    observations = make_observations(costs_s)
    idle = replace(IDLE, cost_s=5.0)
    within = cut_to_budget([*observations[:idle_place], idle, *observations[idle_place:]], seconds)
    worked = [one for one in within if one.trial.network.layers]
    assert worked == observations[: len(worked)]
    assert is_budget_spent(within, seconds) or len(worked) == len(observations)
    if len(worked) > 1:
        assert not is_budget_spent(worked[:-1], seconds)
    assert cut_to_budget(within, seconds) == within
    assert sum_work_s(within) == pytest.approx(sum(costs_s[: len(worked)]))


def test_refused_trials_cost_no_budget():
    refused = Observation(Trial(NETWORK, SETUP))
    assert not is_budget_spent([refused] * 9, 0.1)
