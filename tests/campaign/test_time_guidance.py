"""Campaigns whose energies come later: guided by time, and no made-up joule is stored."""

import pytest

from joulecast.api.measurers import open_measurer
from joulecast.api.options import MeasureOptions
from joulecast.campaign import find_profile_key, run_campaign
from joulecast.campaign.trial_log import TimeGuidedLog, add_stand_in, drop_energy
from joulecast.errors import InputError
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.families import make_family
from joulecast.records import Setup
from joulecast.store import open_store

TARGET = Target(make_family("lenet5:4,8,16,16"), Setup(batch=8))
OPTIONS = MeasureOptions(on="simulated:7", meter="later")


@pytest.fixture
def store():
    with open_store(":memory:") as opened:
        yield opened


def run(store, points):
    with open_measurer(OPTIONS, allows_later=True) as measurer:
        log, estimator = TimeGuidedLog(store), find_estimator("additive")
        result = run_campaign(measurer, log, estimator, TARGET, points=points)
        return result, find_profile_key(measurer)


def test_campaign_stores_windows_and_neither_energies_nor_fits(store):
    result, key = run(store, 12)
    profile = store.load_profile(key)
    recorded = [one for one in profile.observations if one.is_pending]
    assert result.new <= len(profile.observations)
    assert len(recorded) > result.new / 2
    assert all(one.energy_j is None for one in profile.observations)
    assert all(one.pulses for one in recorded if one.trial.network.layers)
    assert dict(profile.fits) == {}


def test_campaign_resumes_and_measures_nothing_again(store):
    first, key = run(store, 6)
    known = len(store.load_observations(key))
    again, _ = run(store, 6)
    assert first.new == 6
    assert again.new == 0
    assert again.points == 6
    assert len(store.load_observations(key)) >= known


def test_stand_in_energy_is_as_uncertain_as_the_time(store):
    _, key = run(store, 6)
    one = next(one for one in store.load_observations(key) if one.pulses)
    guided = add_stand_in(one)
    assert guided.energy_sd_j / guided.energy_j == one.duration_sd_s / one.duration_s
    assert drop_energy(guided) == one


def test_commands_that_need_the_energy_now_refuse_the_recorder():
    with pytest.raises(InputError, match="joulecast profile NET"):
        open_measurer(OPTIONS)
