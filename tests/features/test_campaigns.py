"""Campaigns of a store as other processes see them."""

import pytest

from joulecast.features.campaigns import find_campaign, list_campaigns, stop_campaign
from joulecast.store import open_store
from joulecast.store.campaigns import CampaignProgress
from joulecast.system.errors import MissingError


def test_campaign_is_found_and_stopped_from_outside(tmp_path):
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as store, store.campaigns.add("net", "phone", "k", "measured") as key:
        store.campaigns.change(key, [CampaignProgress(1.0, 2, 0.5)])
        assert [one.points for one in list_campaigns(place)] == [2]
        assert stop_campaign(key, place).is_stop_requested
        assert store.campaigns.is_stop_requested(key)
    assert find_campaign(key, place).progress == (CampaignProgress(1.0, 2, 0.5),)


def test_missing_store_has_no_campaigns(tmp_path):
    place = str(tmp_path / "none.sqlite")
    assert list_campaigns(place) == ()
    for ask in (find_campaign, stop_campaign):
        with pytest.raises(MissingError, match="no store"):
            ask("k", place)
