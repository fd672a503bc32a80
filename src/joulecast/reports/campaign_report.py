"""Report a profiling campaign: how its uncertainty fell, its points, and the time left."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.figures import CampaignMoment, Caption, plot_campaign
from joulecast.reports.report import Report, ReportTable, Section
from joulecast.reports.report_values import count_things, format_time, list_values
from joulecast.store.campaigns import CampaignProgress, RecordedCampaign
from joulecast.units import format_duration, format_share

# An atlas has thousands.
_MOST_MOMENTS = 400


def report_campaign(
    campaign: RecordedCampaign, progress: Sequence[CampaignProgress] = ()
) -> Report:
    """Return the report of a campaign.

    Args:
        campaign: How far it is.
        progress: How it got so far.
    """
    moments = [
        CampaignMoment(one.elapsed_s, one.points, one.uncertainty_share)
        for one in _thin_out(progress)
    ]
    caption = Caption("", f"{campaign.name} on {campaign.device}", campaign.provenance)
    plots = {"campaign": plot_campaign(moments, caption)} if moments else {}
    return Report(
        "campaign",
        f"Campaign for {campaign.name} on {campaign.device}",
        f"{describe_state(campaign)}: {count_things(campaign.points, 'point')}.",
        campaign.provenance,
        (Section("Progress", (), (_list_facts(campaign),), plots),),
        list_campaign_figures(campaign),
    )


def describe_state(campaign: RecordedCampaign) -> str:
    """Return the state of a campaign in words."""
    if campaign.is_running and campaign.is_stop_requested:
        return "Stopping after the current measurement"
    return {
        "running": "Running",
        "done": "Done",
        "stopped": "Stopped by request",
        "failed": "Failed",
        "interrupted": "Interrupted",
    }[campaign.state]


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


def _thin_out(progress: Sequence[CampaignProgress]) -> list[CampaignProgress]:
    """Return at most so many moments as can be seen, the last one included."""
    step = -(-len(progress) // _MOST_MOMENTS) or 1
    return list(progress[::-1][::step][::-1])


def _list_facts(campaign: RecordedCampaign) -> ReportTable:
    return list_values(
        "The campaign",
        (
            ("Device", campaign.device),
            ("Profile", campaign.profile_key),
            ("Provenance", campaign.provenance),
            ("Started", format_time(campaign.started_at_s)),
        ),
    )
