"""See the campaigns of a store, and stop one that runs in another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.errors import MissingError

if TYPE_CHECKING:
    from joulecast.store.campaigns import CampaignProgress, RecordedCampaign


@dataclass(frozen=True)
class CampaignDetails:
    """A campaign, and how it got so far."""

    campaign: RecordedCampaign
    progress: tuple[CampaignProgress, ...]


def list_campaigns(store: str | None = None) -> Sequence[RecordedCampaign]:
    """Return the campaigns of a store, the latest first; none if there is no store."""
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        return opened.campaigns.list_all() if opened.exists else ()


def find_campaign(key: str, store: str | None = None) -> CampaignDetails:
    """Return a campaign, and how it got so far.

    Raises:
        MissingError: There is no such campaign.
    """
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        if not opened.exists:
            raise MissingError(f"there is no store at {opened.place}, so there are no campaigns")
        tables = opened.campaigns
        return CampaignDetails(tables.find(key), tables.list_progress(key))


def stop_campaign(key: str, store: str | None = None) -> RecordedCampaign:
    """Ask a campaign to end after its current measurement, as if its time were over.

    Raises:
        MissingError: There is no such campaign, or it has ended.
    """
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        if not opened.exists:
            raise MissingError(f"there is no store at {opened.place}, so there are no campaigns")
        return opened.campaigns.request_stop(key)
