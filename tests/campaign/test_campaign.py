"""Test campaigns: observations are stored at once, nothing is measured twice, limits hold."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from campaign_examples import SMALL, make_simulated_measurer
from joulecast.campaign import find_profile_key, run_campaign
from joulecast.campaign.anchors import list_anchors
from joulecast.estimators import estimate_network, find_estimator
from joulecast.estimators.base import Target
from joulecast.estimators.plausibility import drop_contradicted
from joulecast.families import make_family
from joulecast.records import Setup
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.store import open_store
from joulecast.system.errors import (
    ContaminatedError,
    MeasurementError,
    MissingError,
    NetError,
    NotTrainingError,
    StoreError,
)

OTHER = Target(make_family("har:8,8,8,8"), Setup(batch=10))


def profile(measurer, store, target=SMALL, **limits):
    return run_campaign(measurer, store, find_estimator("subtractive"), target, **limits)


def list_measured(store, key):
    """Return the trials that were run, without the idle device."""
    return [seen.trial for seen in store.load_observations(key) if seen.trial.network.layers]


def test_campaign_measures_stores_and_fits(measurer, store, monkeypatch):
    reads, read = [], type(store).load_observations

    def count(self, key):
        reads.append(key)
        return read(self, key)

    monkeypatch.setattr(type(store), "load_observations", count)
    measurer.runtime.simulated.disturb("throttled", 1.0, start_s=4.0)
    result = profile(measurer, store, points=24)
    # Reading and parsing all of them before each proposal would take quadratic time.
    assert reads == [result.profile_key]
    assert (result.points, result.new, result.skipped) == (24, 24, ())
    assert result.stopped == "24 points are measured"
    assert result.disturbances["throttled"] >= 1
    assert result.profile_key == find_profile_key(measurer)
    assert len(list_measured(store, result.profile_key)) == 24
    idle = [s for s in store.load_observations(result.profile_key) if not s.trial.network.layers]
    assert len(idle) == 1, "once per run"
    kept = store.load_profile(result.profile_key)
    assert kept.provenance == "simulated"
    answer = estimate_network(kept, make_family("lenet5:3,4,16,8"), SMALL.setup, "subtractive")
    assert answer.unseen_share == 0.0
    assert answer.energy_j > 0


def test_campaign_continues_where_it_stopped(store):
    with make_simulated_measurer("one") as measurer:
        first = profile(measurer, store, points=10)
    with make_simulated_measurer("two") as measurer:
        second = profile(measurer, store, points=23)
    with make_simulated_measurer("three") as measurer:
        third = profile(measurer, store, points=23)
    assert (first.new, second.new, third.new) == (10, 13, 0)
    keys = [trial.key for trial in list_measured(store, second.profile_key)]
    assert len(keys) == len(set(keys)) == 23


def test_store_that_cannot_be_written_is_known_before_measuring(measurer, tmp_path, monkeypatch):
    path = tmp_path / "store.sqlite"
    open_store(path).close()
    monkeypatch.setattr(SimulatedRuntime, "prepare", None)
    with (
        open_store(f"sqlite:///file:{path}?mode=ro&uri=true") as store,
        pytest.raises(StoreError, match="read but not written"),
    ):
        profile(measurer, store, points=3)
    assert list(tmp_path.iterdir()) == [path]


CAMPAIGN = """
import sys, joulecast
print("ready", flush=True)
sys.stdin.readline()
options = {"batch": 10, "points": 10, "estimator": "subtractive", "store": sys.argv[1]}
joulecast.profile("lenet5:4,6,24,16", on="simulated:5", **options)
"""


def check_each_was_measured_once(place, points):
    with open_store(place) as store:
        (profile,) = [one for one in store.list_profiles() if not one.shipped]
        keys = [trial.key for trial in list_measured(store, profile.key)]
    assert len(keys) == len(set(keys)) == points


def test_two_processes_at_once_measure_no_trial_twice(tmp_path):
    place = str(tmp_path / "store.sqlite")
    command = [sys.executable, "-c", CAMPAIGN, place]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    campaigns = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for one in campaigns:
        assert one.stdout.readline() == "ready\n"
    for one in campaigns:
        one.stdin.write("\n")
        one.stdin.flush()
    assert [one.communicate() and one.returncode for one in campaigns] == [0, 0]
    check_each_was_measured_once(place, points=10)


def test_two_campaigns_with_one_server_measure_no_trial_twice(postgres_url):
    def run(name):
        with make_simulated_measurer(name) as measurer, open_store(postgres_url) as store:
            return profile(measurer, store, points=10)

    open_store(postgres_url).close()
    with ThreadPoolExecutor() as pool:
        one, other = pool.map(run, ("one", "other"))
    assert one.points == other.points == one.new + other.new == 10
    check_each_was_measured_once(postgres_url, points=10)


class AnchoredEstimator:
    """An estimator that wants the peaks of a device."""

    def __init__(self):
        self._own = find_estimator("subtractive")
        self.uses, self.propose = self._own.uses, self._own.propose
        self.fit, self.load = self._own.fit, self._own.load

    name, version, uses_anchors = "subtractive", 1, True


def test_peaks_are_measured_first_and_once_for_estimators_that_use_them(measurer, store):
    result = run_campaign(measurer, store, AnchoredEstimator(), SMALL, points=4)
    assert (result.points, result.new) == (4, 4)
    measured = list_measured(store, result.profile_key)
    anchors = list_anchors(measurer, SMALL.setup.precision)
    assert tuple(measured[: len(anchors)]) == anchors
    assert len(measured) == len(anchors) + 4
    again = run_campaign(measurer, store, AnchoredEstimator(), SMALL, points=6)
    assert (again.new, len(list_measured(store, again.profile_key))) == (2, len(anchors) + 6)


@pytest.fixture
def spoilt(measurer, store):
    """Yield a profile's key, a step that one slow window made far too slow, and its store."""
    first = profile(measurer, store, points=12)
    seen = list(store.load_observations(first.profile_key))
    place = next(at for at, one in enumerate(seen) if one.trial.network.layers)
    one = seen[place]
    seen[place] = replace(
        one,
        duration_s=4.0 * one.duration_s,
        energy_j=4.0 * one.energy_j,
        duration_sd_s=2.0 * one.duration_s,
    )
    with open_store(":memory:") as opened:
        for other in seen:
            opened.add_observation(other)
        yield first.profile_key, seen[place], opened


def test_running_a_campaign_again_repairs_a_wrong_observation(measurer, store, spoilt):
    key, wrong, opened = spoilt
    again = profile(measurer, opened, points=12)
    assert (again.new, again.repeated) == (0, 1)
    assert profile(measurer, opened, points=12).repeated == 0
    believed = drop_contradicted(opened.load_observations(key))
    own = [one for one in believed if one.trial == wrong.trial]
    assert wrong not in own
    assert own[0].duration_s == pytest.approx(wrong.duration_s / 4.0, rel=0.1)
    network = make_family("lenet5:3,4,16,8")
    right, found = (
        estimate_network(one.load_profile(key), network, SMALL.setup, "subtractive").energy_j
        for one in (store, opened)
    )
    assert found == pytest.approx(right, rel=0.1)


def test_probe_repairs_nothing(measurer, spoilt):
    """It is short, and its user waits for it."""
    target = replace(SMALL, acquisition="probe")
    assert profile(measurer, spoilt[2], target).repeated == 0


class Killed(BaseException):
    """An interruption that nothing catches."""


def test_observations_survive_an_interruption_and_a_device_that_fails(measurer, store):
    def interrupt(progress):
        if progress.points == 5:
            raise Killed

    def disturb(progress):
        if progress.points == 7:
            measurer.runtime.simulated.disturb("throttled", 1e9)

    for tell, error, points in ((interrupt, Killed, 5), (disturb, ContaminatedError, 7)):
        with pytest.raises(error):
            profile(measurer, store, points=20, on_progress=tell)
        assert len(list_measured(store, find_profile_key(measurer))) == points


def test_points_of_another_network_do_not_count(measurer, store):
    profile(measurer, store, OTHER, points=12)
    assert profile(measurer, store, SMALL, points=12).new == 12


def test_campaign_stops_when_every_curve_is_known_or_before_its_time_is_over(measurer, store):
    result = profile(measurer, store, seconds=30.0)
    assert "30 s" in result.stopped
    assert 10 < result.elapsed_s <= 30
    assert result.new > 3
    result = profile(measurer, store, replace(SMALL, uncertainty_share=0.9), points=500)
    assert result.stopped == "every curve is known within 90 %"
    assert result.uncertainty_share < 0.9
    assert result.new < 100


def test_progress_reports_points_uncertainty_and_time_left(measurer, store):
    told = []
    profile(measurer, store, points=24, seconds=1e6, on_progress=told.append)
    assert [progress.points for progress in told] == list(range(25))
    assert told[0].uncertainty_share == 1.0
    assert told[-1].uncertainty_share < 1.0
    assert told[-1].left_s == 0.0
    # Half of the points are left, at the pace so far.
    assert told[12].left_s == pytest.approx(told[12].elapsed_s)
    assert all(progress.reason for progress in told)


def test_trial_that_does_not_fit_is_skipped_and_the_range_decreases(store):
    with make_simulated_measurer(memory_bytes=200_000) as measurer:
        anchored = run_campaign(measurer, store, AnchoredEstimator(), SMALL, points=4)
        assert anchored.new == 4, "refused peaks do not end a campaign"
        assert any("anchor" in reason for reason in anchored.skipped)
        result = profile(measurer, store, points=30)
    assert result.skipped
    assert "MiB" in result.skipped[0]
    assert result.new >= 20
    assert len(set(result.skipped)) == len(result.skipped)


@pytest.mark.parametrize("error", [NetError, NotTrainingError])
def test_device_that_refuses_everything_ends_a_campaign(measurer, store, monkeypatch, error):
    def refuse(self, trial):
        raise error("no such layer here")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedRuntime, "prepare", refuse)
        with pytest.raises(MeasurementError, match="no such layer here") as caught:
            profile(measurer, store, points=30)
        assert "\n" not in str(caught.value)
    profile(measurer, store, points=2)
    monkeypatch.setattr(SimulatedRuntime, "prepare", refuse)
    # With observations of an earlier run there is something to fit.
    result = profile(measurer, store, points=30)
    assert result.new == 0 and result.stopped
    assert "no such layer here" in result.skipped[0]


def test_fitting_nothing_is_an_error(measurer, store):
    with pytest.raises(MissingError):
        profile(measurer, store, points=0)
