"""Pages of what a store has: devices, curves of layers, campaigns and the fleet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from joulecast.features.campaigns import (
    describe_state,
    find_campaign,
    list_campaign_figures,
    list_campaigns,
    stop_campaign,
)
from joulecast.features.device_overview import (
    DeviceOverview,
    ProfileDetails,
    list_stored_evaluations,
    read_profile_details,
    summarise_device,
)
from joulecast.features.estimate_service import BoundedCache, EstimateService, identify_profile
from joulecast.features.fleet import FleetStatus, find_fleet_status
from joulecast.features.layer_curves import (
    LayerCurve,
    describe_layer_curve,
    find_layer_curve,
    list_layer_curves,
    report_layer_curve,
    sample_layer_curve,
)
from joulecast.features.profiles import SHORT_KEY
from joulecast.records import DATASHEET, FLOAT_PRECISIONS
from joulecast.store import ProfileSummary, open_store
from joulecast.store.campaigns import CampaignProgress, RecordedCampaign, StoredCampaign
from joulecast.system.errors import JoulecastError, MissingError
from joulecast.views.plot_kinds import SampledCurve
from joulecast.views.words import plural
from joulecast.web.answers import DashboardPage, document_problems, find_status, render
from joulecast.web.settings import find_settings
from joulecast.web.work import DataRoute, answer_json, find_work_queue

devices_router = APIRouter(tags=["devices"])
curves_router = APIRouter(tags=["curves"])
campaigns_router = APIRouter(tags=["campaigns"], route_class=DataRoute)
fleet_router = APIRouter(tags=["fleet"])
_KEPT_PROFILES = 32


class PageData:
    """The estimate service of a dashboard, and what takes long to read from its profiles."""

    def __init__(self, store: str | None, service: EstimateService) -> None:
        self.store, self.service = store, service
        self.details: BoundedCache[Any, ProfileDetails] = BoundedCache(_KEPT_PROFILES)
        self._curves: BoundedCache[Any, tuple[LayerCurve, ...]] = BoundedCache(_KEPT_PROFILES)

    def list_curves(self, summary: ProfileSummary) -> tuple[LayerCurve, ...]:
        """Return the curves of a profile."""
        fitted = self.service.fit(summary.key)
        return self._curves.get_or_make(
            identify_profile(summary), lambda: list_layer_curves(fitted.profile)
        )


def find_page_data(request: Request) -> PageData:
    """Return the data of the dashboard that answers a request."""
    data: PageData = request.app.state.page_data
    return data


# ---------------------------------------------------------------------------------------------
# Devices


@dataclass(frozen=True)
class CatalogueRow:
    """A device of the catalogue that was never measured; figures are those of its data sheet.

    Attributes:
        name: How questions call it.
        title: How people call it.
        provenance: That of estimates for it.
        flops_per_s: Dense peak by precision.
    """

    name: str
    title: str
    provenance: str
    flops_per_s: dict[str, float]
    bytes_per_s: float
    memory_bytes: int
    power_limit_w: float


@dataclass(frozen=True)
class DeviceList:
    """All profiles, and the devices that are known by their data sheets alone.

    Attributes:
        profiles: Those of the store by age, then shipped ones.
        catalogue: Shipped data sheets, then those that the user added.
    """

    profiles: tuple[DeviceOverview, ...]
    catalogue: tuple[CatalogueRow, ...]


@devices_router.get("/devices", include_in_schema=False, response_class=HTMLResponse)
def show_devices(request: Request) -> HTMLResponse:
    """Show all profiles and the catalogue."""
    found = list_devices(request)
    return render(
        request,
        "devices.html",
        profiles=found.profiles,
        catalogue=found.catalogue,
        precisions=FLOAT_PRECISIONS,
        short_key=SHORT_KEY,
        describe_age=describe_age,
    )


@devices_router.get(
    "/api/devices", summary="All profiles and the catalogue", response_model=DeviceList
)
def list_devices(request: Request) -> DeviceList:
    """Return every profile with meter, coverage, provenance, age, accuracy and score.

    Devices that were never measured follow with the figures of their data sheets.
    """
    data = find_page_data(request)
    with open_store(data.store, create=False) as opened:
        evaluations = list_stored_evaluations(opened)
        found = [
            summarise_device(
                one,
                data.details.get_or_make(
                    identify_profile(one),
                    # Called at once, if at all.
                    lambda: read_profile_details(opened.load_profile(one.key)),  # noqa: B023
                ),
                evaluations,
            )
            for one in data.service.list_profiles()
        ]
    unmeasured = [
        CatalogueRow(
            sheet.name,
            sheet.title,
            DATASHEET,
            dict(sheet.flops_per_s),
            sheet.bytes_per_s,
            sheet.memory_bytes,
            sheet.power_limit_w,
        )
        for sheet in data.service.list_unmeasured()
    ]
    return DeviceList(tuple(found), tuple(unmeasured))


def describe_age(days: float) -> str:
    """Return an age in words, such as ``3 days``."""
    if days < 1.0:
        hours = round(24.0 * days)
        return "less than an hour" if hours < 1 else plural(hours, "hour")
    return plural(round(days), "day") if days < 365.25 else f"{days / 365.25:.1f} years"


# ---------------------------------------------------------------------------------------------
# Curves of layers

# Layers to choose from; those with the fewest points are left out.
_MOST_LISTED = 200
_FILTERS = {"kind": "Kind", "image": "Image size", "batch": "Batch size", "precision": "Precision"}
_Name = Annotated[str, Query(max_length=200)]


@dataclass(frozen=True)
class CurveQuery:
    """Which curve is shown; empty values leave the choice open.

    Attributes:
        profile: A profile's key or the name of its device, or the start of either.
        kind: Kind of the layer: ``conv2d``, ``linear`` ...
        image: Image size, such as ``48x48``.
        layer: Key of the curve.
    """

    profile: _Name = ""
    kind: _Name = ""
    image: _Name = ""
    batch: Annotated[int, Query(ge=0, le=10**9)] = 0
    precision: _Name = ""
    layer: _Name = ""

    @property
    def filters(self) -> dict[str, Any]:
        """What the layers to choose from have in common."""
        return {name: value for name in _FILTERS if (value := getattr(self, name))}


@dataclass(frozen=True)
class CurvePointData:
    """A measured point of a curve: widths, energy of one step, and the prediction there."""

    widths: tuple[float, ...]
    measured_j: float
    predicted_j: float
    error_percent: float


@dataclass(frozen=True)
class CurveData:
    """The energy of one step of a layer over its widths.

    Attributes:
        curve: The layer: kind, image size, batch size, precision, names of the widths.
        axes: Grid points of each width.
        means_j: Predicted energies, the last width running fastest.
        sds_j: Standard deviations of the predictions.
        points: What was measured.
        next_widths: Where the standard deviation is largest; empty where everything was measured.
        layers: All layers of the profile that match the query.
    """

    profile: str
    device: str
    provenance: str
    covers: str
    curve: dict[str, Any]
    axes: tuple[tuple[float, ...], ...]
    means_j: tuple[float, ...]
    sds_j: tuple[float, ...]
    points: tuple[CurvePointData, ...]
    next_widths: tuple[float, ...]
    layers: tuple[dict[str, Any], ...]


Asked = Annotated[CurveQuery, Depends()]


@curves_router.get("/curves", include_in_schema=False, response_class=HTMLResponse)
async def show_curves(request: Request, query: Asked) -> HTMLResponse:
    """Show the curve of a layer."""
    return await find_work_queue(request).run(_render_curves, request, query)


@curves_router.get(
    "/api/curves", summary="The energy of a layer over its widths", response_model=CurveData
)
async def get_curve(request: Request, query: Asked) -> Response:
    """Return predicted energies on a grid, with standard deviations and measured points."""
    return await answer_json(request, _find_curve, find_page_data(request), query)


def _render_curves(request: Request, query: CurveQuery) -> HTMLResponse:
    data = find_page_data(request)
    profiles = data.service.list_profiles()
    context: dict[str, Any] = dict.fromkeys(("chosen", "curve", "report"))
    context |= {"filters": {}, "layers": (), "error": ""}
    status = 200
    try:
        chosen = context["chosen"] = _choose_profile(data, query)
        curves = data.list_curves(chosen)
        context["filters"] = {n: (title, _list_values(curves, n)) for n, title in _FILTERS.items()}
        curve, matching, sampled = _choose_curve(data, chosen, query)
        context |= {
            "curve": describe_layer_curve(curve),
            "layers": matching,
            "report": report_layer_curve(curve, sampled, chosen.provenance),
        }
    except JoulecastError as error:
        if profiles:
            context["error"], status = str(error), find_status(error)
    names = {"query": query, "profiles": profiles, "short_key": SHORT_KEY}
    return render(request, "curves.html", status, **names, **context)


def _find_curve(data: PageData, query: CurveQuery) -> CurveData:
    chosen = _choose_profile(data, query)
    curve, matching, sampled = _choose_curve(data, chosen, query)
    return CurveData(
        chosen.key,
        chosen.device,
        chosen.provenance,
        chosen.covers,
        describe_layer_curve(curve),
        sampled.axes,
        sampled.means_j,
        sampled.sds_j,
        tuple(
            CurvePointData(one.widths, one.measured_j, one.predicted_j, one.error_percent)
            for one in sampled.points
        ),
        sampled.next_point[0] if sampled.next_point else (),
        tuple(matching),
    )


def _choose_profile(data: PageData, query: CurveQuery) -> ProfileSummary:
    profiles = data.service.list_profiles()
    if query.profile:
        return data.service.find_profile(query.profile)
    if not profiles:
        raise MissingError("there are no profiles yet: make one with `joulecast profile NET`")
    # Runtimes that fuse layers have no curves of single ones.
    return next((one for one in profiles if "additive" in one.estimators), profiles[0])


def _choose_curve(
    data: PageData, profile: ProfileSummary, query: CurveQuery
) -> tuple[LayerCurve, list[dict[str, Any]], SampledCurve]:
    """Return the curve to show, descriptions of all that match the query, and its values."""
    curves = data.list_curves(profile)
    chosen = find_layer_curve(curves, **query.filters)
    matching = []
    for one in curves:
        facts = describe_layer_curve(one)
        if all(facts[name] == value for name, value in query.filters.items()):
            matching.append(facts)
            chosen = one if one.key == query.layer else chosen
    sampled = sample_layer_curve(data.service.fit(profile.key), chosen)
    return chosen, matching[:_MOST_LISTED], sampled


def _list_values(curves: Sequence[LayerCurve], name: str) -> list[Any]:
    """Return the values of a filter, in order; image sizes by their number of pixels."""

    def sort_key(value: Any) -> tuple[int, Any]:
        sizes = str(value).split("x")
        is_size = all(size.isdecimal() for size in sizes)
        return (0, [int(size) for size in sizes]) if is_size else (1, value)

    return sorted({describe_layer_curve(one)[name] for one in curves} - {""}, key=sort_key)


# ---------------------------------------------------------------------------------------------
# Campaigns: live progress of profiling in any process with the same store

Chosen = Annotated[str, Query(max_length=40, description="Key of a campaign of the list.")]
CampaignKey = Annotated[str, Path(max_length=40, description="Key of a campaign of the list.")]
# The store is asked so often; browsers that went away are noticed then too.
_POLL_S = 1.0
_MOST_STREAMS = 32


@dataclass(frozen=True)
class CampaignList:
    """The campaigns of the store, the latest first."""

    campaigns: tuple[RecordedCampaign, ...]


@dataclass(frozen=True)
class CampaignHistory:
    """A campaign, and how it got so far."""

    campaign: RecordedCampaign
    progress: tuple[CampaignProgress, ...]


@campaigns_router.get("/campaigns", include_in_schema=False, response_class=HTMLResponse)
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
        chosen=details and details.campaign,
        report=details and details.report(),
        describe_state=describe_state,
        list_figures=list_campaign_figures,
    )


@campaigns_router.get("/api/campaigns", summary="All campaigns", response_model=CampaignList)
def get_campaigns(request: Request) -> CampaignList:
    """Return the campaigns of the store, those of other processes and machines included."""
    return CampaignList(tuple(list_campaigns(find_settings(request).store)))


@campaigns_router.get("/api/campaigns/events", include_in_schema=False)
async def follow_campaigns(request: Request) -> StreamingResponse:
    """Send the state of all campaigns whenever it changes, as server-sent events."""
    streams: set[object] = request.app.state.__dict__.setdefault("campaign_streams", set())
    if len(streams) >= _MOST_STREAMS:
        raise HTTPException(503, "too many pages follow campaigns: close some")
    return StreamingResponse(_send_changes(request, streams), media_type="text/event-stream")


@campaigns_router.get(
    "/api/campaigns/{key}",
    summary="One campaign and its progress",
    response_model=CampaignHistory,
    responses=document_problems(404),
)
def get_campaign(request: Request, key: CampaignKey) -> CampaignHistory:
    """Return a campaign, and how its uncertainty fell."""
    found = find_campaign(key, find_settings(request).store)
    return CampaignHistory(found.campaign, found.progress)


@campaigns_router.post(
    "/api/campaigns/{key}/stop",
    summary="Stop a campaign",
    response_model=RecordedCampaign,
    responses=document_problems(404, 415),
)
def post_stop(request: Request, key: CampaignKey) -> RecordedCampaign:
    """Ask a campaign to end after its current measurement; what it measured is kept and fitted.

    The body is an empty JSON object.
    """
    return stop_campaign(key, find_settings(request).store)


async def _send_changes(request: Request, streams: set[object]) -> AsyncIterator[str]:
    own, last = object(), ""
    streams.add(own)
    try:
        # Browsers that lost the connection try again after this time.
        yield "retry: 3000\n\n"
        while not await request.is_disconnected():
            found = await run_in_threadpool(list_campaigns, find_settings(request).store)
            states = [[one.key, one.changed_at_s, one.is_stop_requested] for one in found]
            text = json.dumps(states)
            # A comment keeps proxies from closing a silent connection.
            yield ": waiting\n\n" if text == last else f"event: campaigns\ndata: {text}\n\n"
            last = text
            await asyncio.sleep(_POLL_S)
    finally:
        streams.discard(own)


# ---------------------------------------------------------------------------------------------
# Fleet


@dataclass(frozen=True)
class FleetDeviceData:
    """A device of the fleet.

    Attributes:
        state: ``ready``, ``away``, ``parked`` or ``refused``.
        reason: Why it is not ready.
        description: Device, runtime and meter, as the agent found them.
        observation_count: Observations of its profile.
        changed_at_s: When this became known, in seconds since 1970.
    """

    name: str
    state: str
    reason: str
    description: str
    profile_key: str
    observation_count: int
    changed_at_s: float


@dataclass(frozen=True)
class FleetData:
    """A fleet; without one, both lists are empty.

    Attributes:
        is_up: Whether a coordinator is running.
    """

    is_up: bool
    devices: tuple[FleetDeviceData, ...]
    campaigns: tuple[StoredCampaign, ...]


@fleet_router.get("/fleet", include_in_schema=False, response_class=HTMLResponse)
def show_fleet(request: Request) -> HTMLResponse:
    """Show the fleet of the store."""
    status = _find_status(request)
    return render(request, "fleet.html", report=None if status is None else status.report())


@fleet_router.get("/api/fleet", summary="Devices, queue and faults", response_model=FleetData)
def get_fleet(request: Request) -> FleetData:
    """Return what the store knows about the fleet."""
    status = _find_status(request)
    if status is None:
        return FleetData(False, (), ())
    devices = tuple(
        # What the fleet file says about a device may contain its token.
        FleetDeviceData(
            one.name,
            one.state,
            one.reason,
            one.description,
            one.profile_key,
            status.points.get(one.profile_key, 0),
            one.changed_at_s,
        )
        for one in status.devices
    )
    return FleetData(status.is_up, devices, status.campaigns)


def _find_status(request: Request) -> FleetStatus | None:
    """Return the fleet of the store; None if it has none."""
    try:
        return find_fleet_status(find_settings(request).store)
    except MissingError:
        return None


PAGES = (
    DashboardPage(
        "/devices",
        "Devices",
        "Profiles of devices: meter, provenance, age, observations, accuracy and score; the "
        "catalogue.",
        devices_router,
    ),
    DashboardPage(
        "/curves",
        "Curves",
        "The energy of a layer over its widths, with measured points and the most useful next one.",
        curves_router,
    ),
    DashboardPage(
        "/campaigns",
        "Campaigns",
        "Live progress of profiling: uncertainty, points and the time left.",
        campaigns_router,
    ),
    DashboardPage(
        "/fleet",
        "Fleet",
        "Devices elsewhere, what is requested of them, and what is wrong.",
        fleet_router,
    ),
)
