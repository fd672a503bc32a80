"""See and report the campaigns of a store, and stop one that runs in another process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.store import open_store
from joulecast.system.errors import MissingError
from joulecast.system.units import format_duration, format_share
from joulecast.views.plot_kinds import plot_campaign
from joulecast.views.report import Block, Report, Reportable, Text, list_facts
from joulecast.views.words import format_time, plural

if TYPE_CHECKING:
    from joulecast.store.campaigns import CampaignProgress, CampaignTables, RecordedCampaign

# An atlas has thousands of moments.
_MOST_MOMENTS = 400


@dataclass(frozen=True)
class CampaignDetails(Reportable):
    """A campaign, and how it got so far."""

    campaign: RecordedCampaign
    progress: tuple[CampaignProgress, ...]

    def report(self) -> Report:
        campaign = self.campaign
        # At most so many moments as can be seen, the last one included.
        step = -(-len(self.progress) // _MOST_MOMENTS) or 1
        moments = [
            (one.elapsed_s, one.points, one.uncertainty_share)
            for one in self.progress[::-1][::step][::-1]
        ]
        facts = (
            *list_campaign_figures(campaign),
            ("Profile", campaign.profile_key),
            ("Provenance", campaign.provenance),
            ("Started", format_time(campaign.started_at_s)),
        )
        blocks: list[Block] = [
            Text(f"{describe_state(campaign)}: {plural(campaign.points, 'point')}.", "lead"),
            *([Text(campaign.reason)] if campaign.reason else []),
            list_facts(facts),
            *([plot_campaign(moments, campaign.provenance)] if moments else []),
        ]
        title = f"Campaign for {campaign.name} on {campaign.device}"
        return Report(title, tuple(blocks), campaign.provenance, "campaign")


def list_campaigns(store: str | None = None) -> Sequence[RecordedCampaign]:
    """Return the campaigns of a store, the latest first; none if there is no store."""
    with open_store(store, create=False) as opened:
        return opened.campaigns.list_all() if opened.exists else ()


def find_campaign(key: str, store: str | None = None) -> CampaignDetails:
    """Return a campaign, and how it got so far.

    Raises:
        MissingError: There is no such campaign.
    """
    with _open_campaigns(store) as tables:
        return CampaignDetails(tables.find(key), tables.list_progress(key))


def stop_campaign(key: str, store: str | None = None) -> RecordedCampaign:
    """Ask a campaign to end after its current measurement, as if its time were over.

    Raises:
        MissingError: There is no such campaign, or it has ended.
    """
    with _open_campaigns(store) as tables:
        return tables.request_stop(key)


@contextmanager
def _open_campaigns(store: str | None) -> Iterator[CampaignTables]:
    """Open the campaigns of a store, or raise MissingError if there is no store."""
    with open_store(store, create=False) as opened:
        if not opened.exists:
            raise MissingError(f"there is no store at {opened.place}, so there are no campaigns")
        yield opened.campaigns


def describe_state(campaign: RecordedCampaign) -> str:
    """Return the state of a campaign in words."""
    if campaign.is_running and campaign.is_stop_requested:
        return "Stopping after the current measurement"
    return "Stopped by request" if campaign.state == "stopped" else campaign.state.capitalize()


def list_campaign_figures(campaign: RecordedCampaign) -> tuple[tuple[str, str], ...]:
    """Return the figures of a campaign that change while it runs."""
    share, left_s = campaign.uncertainty_share, campaign.left_s
    of = f" of {campaign.total:,}" if campaign.total else ""
    return (
        ("Uncertainty", "not known yet" if share is None else f"± {format_share(share)}"),
        ("Points", f"{campaign.points:,}{of}"),
        ("Elapsed", format_duration(campaign.elapsed_s)),
        ("Time left", "–" if left_s is None else format_duration(left_s)),
    )
