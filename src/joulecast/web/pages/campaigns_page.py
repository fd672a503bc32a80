"""Campaigns: live progress of profiling, in any process with the same store, and how to stop it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from joulecast.features.campaigns import (
    CampaignDetails,
    find_campaign,
    list_campaigns,
    stop_campaign,
)
from joulecast.figures import embed_plot
from joulecast.reports.campaign_report import (
    describe_state,
    list_campaign_figures,
    report_campaign,
)
from joulecast.store.campaigns import RecordedCampaign
from joulecast.web.data_routes import DataRoute
from joulecast.web.problems import document_problems
from joulecast.web.rendering import DashboardPage, render
from joulecast.web.web_settings import find_settings

router = APIRouter(tags=["campaigns"], route_class=DataRoute)
Chosen = Annotated[str, Query(max_length=40, description="Key of a campaign of the list.")]
CampaignKey = Annotated[str, Path(max_length=40, description="Key of a campaign of the list.")]
# The store is asked so often; browsers that went away are noticed then too.
_POLL_S = 1.0
_MOST_STREAMS = 32


@dataclass(frozen=True)
class CampaignData:
    """A campaign.

    Attributes:
        key: Identifies it in addresses.
        name: What is profiled: a network, or the atlas.
        state: ``running``, ``done``, ``stopped``, ``failed`` or ``interrupted``.
        reason: What is measured next and why, or why it ended.
        points: Observations that the target can use, those of earlier runs included.
        total: Number of points at which it ends at the latest; null if that is unknown.
        uncertainty_share: Uncertainty of the estimate; null before it is known.
        elapsed_s: Device time of this run so far.
        left_s: Estimated remaining time; null while no limit applies.
        is_stop_requested: Whether it ends after the current measurement.
        started_at_s: In seconds since 1970, as ``changed_at_s``.
    """

    key: str
    name: str
    device: str
    profile_key: str
    provenance: str
    state: str
    reason: str
    points: int
    total: int | None
    uncertainty_share: float | None
    elapsed_s: float
    left_s: float | None
    is_stop_requested: bool
    started_at_s: float
    changed_at_s: float


@dataclass(frozen=True)
class ProgressData:
    """A moment of a campaign."""

    elapsed_s: float
    points: int
    uncertainty_share: float | None


@dataclass(frozen=True)
class CampaignList:
    """The campaigns of the store, the latest first."""

    campaigns: tuple[CampaignData, ...]


@dataclass(frozen=True)
class CampaignHistory:
    """A campaign, and how it got so far."""

    campaign: CampaignData
    progress: tuple[ProgressData, ...]


@router.get("/campaigns", include_in_schema=False, response_class=HTMLResponse)
def show_campaigns(request: Request, campaign: Chosen = "") -> HTMLResponse:
    """Show all campaigns, and the chosen one or the latest."""
    store = find_settings(request).store
    campaigns = list_campaigns(store)
    key = campaign or (campaigns[0].key if campaigns else "")
    details = find_campaign(key, store) if key else None
    return render(
        request,
        "campaigns.html",
        campaigns=campaigns,
        chosen=details.campaign if details else None,
        report=report_campaign(details.campaign, details.progress) if details else None,
        describe_state=describe_state,
        list_figures=list_campaign_figures,
    )


@router.get("/api/campaigns", summary="All campaigns", response_model=CampaignList)
def get_campaigns(request: Request) -> CampaignList:
    """Return the campaigns of the store, those of other processes and machines included."""
    found = list_campaigns(find_settings(request).store)
    return CampaignList(tuple(map(_convert, found)))


@router.get("/api/campaigns/events", include_in_schema=False)
async def follow_campaigns(request: Request, campaign: Chosen = "") -> StreamingResponse:
    """Send the state of all campaigns whenever it changes, as server-sent events."""
    streams: set[object] = request.app.state.__dict__.setdefault("campaign_streams", set())
    if len(streams) >= _MOST_STREAMS:
        raise HTTPException(503, "too many pages follow campaigns: close some")
    events = _send_changes(request, campaign, streams)
    return StreamingResponse(events, media_type="text/event-stream")


@router.get(
    "/api/campaigns/{key}",
    summary="One campaign and its progress",
    response_model=CampaignHistory,
    responses=document_problems(404),
)
def get_campaign(request: Request, key: CampaignKey) -> CampaignHistory:
    """Return a campaign, and how its uncertainty fell."""
    found = find_campaign(key, find_settings(request).store)
    progress = tuple(ProgressData(**asdict(one)) for one in found.progress)
    return CampaignHistory(_convert(found.campaign), progress)


@router.post(
    "/api/campaigns/{key}/stop",
    summary="Stop a campaign",
    response_model=CampaignData,
    responses=document_problems(404, 415),
)
def post_stop(request: Request, key: CampaignKey) -> CampaignData:
    """Ask a campaign to end after its current measurement; what it measured is kept and fitted.

    The body is an empty JSON object.
    """
    return _convert(stop_campaign(key, find_settings(request).store))


async def _send_changes(request: Request, key: str, streams: set[object]) -> AsyncIterator[str]:
    own, last = object(), ""
    streams.add(own)
    try:
        # Browsers that lost the connection try again after this time.
        yield "retry: 3000\n\n"
        while not await request.is_disconnected():
            state = await run_in_threadpool(_describe, find_settings(request).store, key)
            text = json.dumps(state, separators=(",", ":"), sort_keys=True)
            # A comment keeps proxies from closing a silent connection.
            yield ": waiting\n\n" if text == last else f"event: campaigns\ndata: {text}\n\n"
            last = text
            await asyncio.sleep(_POLL_S)
    finally:
        streams.discard(own)


def _describe(store: str | None, key: str) -> dict[str, Any]:
    """Return what the page shows: every campaign, and the chosen one in detail."""
    campaigns = list_campaigns(store)
    chosen = next((one for one in campaigns if one.key == key), None)
    details = None if chosen is None else find_campaign(key, store)
    return {
        "campaigns": [_describe_row(one) for one in campaigns],
        "chosen": None if details is None else _describe_details(details),
    }


def _describe_row(campaign: RecordedCampaign) -> dict[str, Any]:
    return {
        "key": campaign.key,
        "state": describe_state(campaign),
        "is_running": campaign.is_running,
        "figures": [value for _, value in list_campaign_figures(campaign)],
    }


def _describe_details(details: CampaignDetails) -> dict[str, Any]:
    report = report_campaign(details.campaign, details.progress)
    plots = [embed_plot(plot).figure for plot in report.plots.values()]
    return {
        **_describe_row(details.campaign),
        "lead": report.lead,
        "reason": details.campaign.reason,
        "is_stop_requested": details.campaign.is_stop_requested,
        "figure": plots[0] if plots else None,
    }


def _convert(campaign: RecordedCampaign) -> CampaignData:
    return CampaignData(**asdict(campaign))


PAGE = DashboardPage(
    "/campaigns",
    "Campaigns",
    "Live progress of profiling: uncertainty, points and the time left.",
    router,
)
