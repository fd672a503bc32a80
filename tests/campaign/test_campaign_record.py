"""A campaign is visible in the store while it runs, and ends when it is asked to."""

import pytest

from campaign_examples import SMALL, make_simulated_measurer
from joulecast.campaign import run_campaign
from joulecast.campaign.atlas_campaign import AtlasLimits, run_atlas
from joulecast.campaign.trial_log import describe_profile, record_campaign
from joulecast.errors import MeasurementError
from joulecast.estimators import find_estimator
from joulecast.store import open_store


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite") as opened:
        yield opened


def run(store, on_progress=None, **limits):
    with make_simulated_measurer() as measurer:
        estimator = find_estimator("subtractive")
        return run_campaign(measurer, store, estimator, SMALL, on_progress=on_progress, **limits)


def test_campaign_is_visible_while_it_runs_and_when_it_is_done(store):
    seen = []
    result = run(store, lambda now: seen.append(store.campaigns.list_all()[0]), points=6)
    assert {one.state for one in seen} == {"running"}
    (done,) = store.campaigns.list_all()
    assert (done.state, done.reason) == ("done", "6 points are measured")
    assert (done.name, done.provenance) == (SMALL.network.name, "simulated")
    assert (done.points, done.profile_key) == (6, result.profile_key)
    moments = store.campaigns.list_progress(done.key)
    assert moments[-1].points == 6 and len(moments) == len(seen)
    assert [one.elapsed_s for one in moments] == sorted(one.elapsed_s for one in moments)


def test_campaign_ends_by_request_and_is_fitted_as_if_its_time_were_over(store):
    def stop_at_four(now):
        if now.points == 4:
            store.campaigns.request_stop(store.campaigns.list_all()[0].key)

    result = run(store, stop_at_four, points=50)
    assert result.stopped == "it was stopped by request"
    assert result.points == 5
    (record,) = store.campaigns.list_all()
    assert record.state == "stopped"
    assert store.load_fit(result.profile_key, "subtractive") is not None
    # Another run starts without the request.
    assert run(store, points=8).points == 8


def test_atlas_ends_by_request(store):
    with make_simulated_measurer() as measurer:
        asked = iter([False, False, True])
        done = run_atlas(
            measurer, store, AtlasLimits(networks=4), is_stop_requested=lambda: next(asked)
        )
    assert (done.stopped, done.new) == ("it was stopped by request", 2)


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (MeasurementError("the device is gone"), "failed", "the device is gone"),
        (ZeroDivisionError("oops"), "failed", "ZeroDivisionError: oops"),
        (KeyboardInterrupt(), "interrupted", "it was interrupted"),
    ],
)
def test_error_that_ends_a_campaign_is_recorded(store, error, state, reason):
    profile = describe_profile(make_simulated_measurer())
    with pytest.raises(type(error)), record_campaign(store, profile, "net"):
        raise error
    (found,) = store.campaigns.list_all()
    assert (found.state, found.reason) == (state, reason)


def test_campaign_of_another_storage_is_not_recorded():
    profile = describe_profile(make_simulated_measurer())
    with record_campaign(object(), profile, "net") as record:
        assert record.key == "" and not record.is_stop_requested()
        assert not record.is_stop_requested()
