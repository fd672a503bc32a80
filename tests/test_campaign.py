"""Campaigns: every observation is kept at once, nothing is measured twice, every limit holds."""

import pytest

from joulecast.campaign import find_profile_key, run_campaign
from joulecast.errors import (
    ContaminatedError,
    MeasurementError,
    MissingError,
    NetError,
    NotTrainingError,
)
from joulecast.estimators import estimate_network, find_estimator
from joulecast.estimators.base import Target
from joulecast.families import make_family
from joulecast.measurer import MeasureClock, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Setup
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store

SMALL = Target(make_family("lenet5:4,6,24,16"), Setup(batch=10))
OTHER = Target(make_family("har:8,8,8,8"), Setup(batch=10))


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite") as opened:
        yield opened


@pytest.fixture
def rig():
    with make_simulated_rig() as opened:
        yield opened


def make_simulated_rig(run="first", **options):
    world = make_simulated_device(5, **options)
    clock = MeasureClock(world.now, world.sleep, world.now)
    return make_measurer(SimulatedRuntime(world), SimulatedMeter(world), run=run, clock=clock)


def profile(rig, store, target=SMALL, **limits):
    return run_campaign(rig, store, find_estimator("subtractive"), target, **limits)


def measured(store, key):
    """Trials that were run, without the waiting device."""
    return [seen.trial for seen in store.load_observations(key) if seen.trial.network.layers]


def test_it_measures_keeps_and_fits(rig, store):
    result = profile(rig, store, points=24)
    assert (result.points, result.new, result.skipped) == (24, 24, ())
    assert result.stopped == "24 points are measured"
    assert result.profile_key == find_profile_key(rig)
    assert len(measured(store, result.profile_key)) == 24
    kept = store.load_profile(result.profile_key)
    assert kept.provenance == "simulated"
    answer = estimate_network(kept, make_family("lenet5:3,4,16,8"), SMALL.setup, "subtractive")
    assert answer.unseen_share == 0.0
    assert answer.energy_j > 0


def test_the_waiting_device_is_observed_once_a_run(rig, store):
    result = profile(rig, store, points=3)
    idle = [s for s in store.load_observations(result.profile_key) if not s.trial.network.layers]
    assert len(idle) == 1


def test_it_goes_on_where_it_stopped_and_measures_nothing_twice(store):
    with make_simulated_rig("one") as rig:
        first = profile(rig, store, points=10)
    with make_simulated_rig("two") as rig:
        second = profile(rig, store, points=23)
    with make_simulated_rig("three") as rig:
        third = profile(rig, store, points=23)
    assert (first.new, second.new, third.new) == (10, 13, 0)
    keys = [trial.key for trial in measured(store, second.profile_key)]
    assert len(keys) == len(set(keys)) == 23


class Cut(BaseException):
    """As sudden as a kill."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Cut])
def test_whatever_cuts_it_what_was_measured_is_kept(rig, store, error):
    def cut(progress):
        if progress.points == 7:
            raise error

    with pytest.raises(error):
        profile(rig, store, points=20, on_progress=cut)
    assert len(measured(store, find_profile_key(rig))) == 7
    assert profile(rig, store, points=20).new == 13


def test_points_of_another_net_do_not_count(rig, store):
    profile(rig, store, OTHER, points=12)
    assert profile(rig, store, SMALL, points=12).new == 12


def test_it_stops_when_everything_is_known(rig, store):
    target = Target(SMALL.network, SMALL.setup, uncertainty_share=0.9)
    result = profile(rig, store, target, points=500)
    assert result.stopped == "every curve is known within 90%"
    assert result.uncertainty_share < 0.9
    assert result.new < 100


def test_it_stops_before_its_seconds_are_spent(rig, store):
    result = profile(rig, store, seconds=30.0)
    assert "30 s" in result.stopped
    assert 10 < result.elapsed_s <= 30
    assert result.new > 3


def test_progress_tells_points_doubt_and_time_left(rig, store):
    told = []
    profile(rig, store, points=24, seconds=1e6, on_progress=told.append)
    assert [progress.points for progress in told] == list(range(25))
    assert told[0].uncertainty_share == 1.0
    assert told[-1].uncertainty_share < 1.0
    assert told[-1].left_s == 0.0
    # As many points as are left, at the pace so far.
    assert told[12].left_s == pytest.approx(told[12].elapsed_s)
    assert all(progress.reason for progress in told)


def test_a_trial_that_does_not_fit_is_skipped_and_the_range_shrinks(store):
    with make_simulated_rig(memory_bytes=200_000) as rig:
        result = profile(rig, store, points=30)
    assert result.skipped
    assert "MiB" in result.skipped[0]
    assert result.new >= 20
    assert len(set(result.skipped)) == len(result.skipped)


def test_what_can_never_be_built_ends_in_words(rig, store, monkeypatch):
    def refuse(self, trial):
        raise NetError("no such layer here")

    profile(rig, store, points=2)
    monkeypatch.setattr(SimulatedRuntime, "prepare", refuse)
    result = profile(rig, store, points=30)
    assert result.new == 0
    assert result.stopped
    assert "no such layer here" in result.skipped[0]


def test_where_everything_is_refused_the_first_reason_is_the_error(rig, store, monkeypatch):
    def refuse(self, trial):
        raise NotTrainingError("no weight of the net moved")

    monkeypatch.setattr(SimulatedRuntime, "prepare", refuse)
    with pytest.raises(MeasurementError, match="no weight of the net moved") as caught:
        profile(rig, store, points=30)
    assert "\n" not in str(caught.value)


def test_where_nothing_was_tried_that_is_the_error(rig, store):
    with pytest.raises(MissingError):
        profile(rig, store, points=0)


def test_a_device_that_cannot_be_measured_is_an_error_and_keeps_what_was(rig, store):
    def disturb(progress):
        if progress.points == 5:
            rig.runtime._world.disturb("stuck", 1e9)

    with pytest.raises(ContaminatedError):
        profile(rig, store, points=20, on_progress=disturb)
    assert len(measured(store, find_profile_key(rig))) == 5
