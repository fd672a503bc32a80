"""Pages of what a store has: devices, curves of layers, campaigns and the fleet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from joulecast.features.campaigns import (
    describe_state,
    find_campaign,
    list_campaign_figures,
    list_campaigns,
    stop_campaign,
)
from joulecast.features.device_overview import DeviceOverview, describe_age, summarise_device
from joulecast.features.fleet import FleetStatus, find_fleet_status
from joulecast.features.layer_curves import (
    LayerCurve,
    describe_layer_curve,
    find_layer_curves,
    report_layer_curve,
    sample_layer_curve,
)
from joulecast.features.profiles import SHORT_KEY
from joulecast.records import DATASHEET, FLOAT_PRECISIONS
from joulecast.store import ProfileSummary, open_store
from joulecast.store.campaigns import CampaignProgress, RecordedCampaign, StoredCampaign
from joulecast.system.errors import JoulecastError, MissingError
from joulecast.views.plot_kinds import SampledCurve
from joulecast.web.answers import DashboardPage, find_status, render
from joulecast.web.dashboard import Dashboard, Here, computed

DEVICES = DashboardPage(
    "/devices",
    "Devices",
    "Profiles of devices: meter, provenance, age, observations, accuracy and score; the catalogue.",
)
CURVES = DashboardPage(
    "/curves",
    "Curves",
    "The energy of a layer over its widths, with measured points and the most useful next one.",
)
CAMPAIGNS = DashboardPage(
    "/campaigns", "Campaigns", "Live progress of profiling: uncertainty, points and the time left."
)
FLEET = DashboardPage(
    "/fleet", "Fleet", "Devices elsewhere, what is requested of them, and what is wrong."
)


# ---------------------------------------------------------------------------------------------
# Devices


class CatalogueRow(BaseModel):
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


@DEVICES.html
def show_devices(request: Request, here: Here) -> HTMLResponse:
    """Show all profiles and the catalogue."""
    return render(
        request,
        "devices.html",
        **vars(list_devices(here)),
        precisions=FLOAT_PRECISIONS,
        short_key=SHORT_KEY,
        describe_age=describe_age,
    )


@DEVICES.json("All profiles and the catalogue")
def list_devices(here: Here) -> DeviceList:
    """Return every profile with meter, coverage, provenance, age, accuracy and score.

    Devices that were never measured follow with the figures of their data sheets.
    """
    with open_store(here.settings.store, create=False) as opened:
        evaluations = opened.evaluations.list_all() if opened.exists else ()
    profiles = (
        summarise_device(one, here.read_details(one), evaluations)
        for one in here.service.list_profiles()
    )
    unmeasured = (
        CatalogueRow(**vars(one), provenance=DATASHEET) for one in here.service.list_unmeasured()
    )
    return DeviceList(tuple(profiles), tuple(unmeasured))


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


Asked = Annotated[CurveQuery, Depends()]


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


@CURVES.html
@computed
def show_curves(request: Request, here: Here, query: Asked) -> HTMLResponse:
    """Show the curve of a layer."""
    profiles = here.service.list_profiles()
    context: dict[str, Any] = dict.fromkeys(("chosen", "curve", "report"))
    context |= {"filters": {}, "layers": (), "error": ""}
    status = 200
    try:
        chosen = context["chosen"] = _choose_profile(here, query)
        curves = here.list_curves(chosen)
        context["filters"] = {n: (title, _list_values(curves, n)) for n, title in _FILTERS.items()}
        curve, matching, sampled = _choose_curve(here, chosen, query)
        report = report_layer_curve(curve, sampled, chosen.provenance)
        context |= {"curve": describe_layer_curve(curve), "layers": matching, "report": report}
    except JoulecastError as error:
        if profiles:
            context["error"], status = str(error), find_status(error)
    names = {"query": query, "profiles": profiles, "short_key": SHORT_KEY}
    return render(request, "curves.html", status, **names, **context)


@CURVES.json("The energy of a layer over its widths")
@computed
def get_curve(request: Request, here: Here, query: Asked) -> CurveData:
    """Return predicted energies on a grid, with standard deviations and measured points."""
    chosen = _choose_profile(here, query)
    curve, matching, sampled = _choose_curve(here, chosen, query)
    points = (
        CurvePointData(**vars(one), error_percent=one.error_percent) for one in sampled.points
    )
    return CurveData(
        chosen.key,
        chosen.device,
        chosen.provenance,
        chosen.covers,
        describe_layer_curve(curve),
        sampled.axes,
        sampled.means_j,
        sampled.sds_j,
        tuple(points),
        sampled.next_point[0] if sampled.next_point else (),
        tuple(matching),
    )


def _choose_profile(here: Dashboard, query: CurveQuery) -> ProfileSummary:
    profiles = here.service.list_profiles()
    if query.profile:
        return here.service.find_profile(query.profile)
    if not profiles:
        raise MissingError("there are no profiles yet: make one with `joulecast profile NET`")
    # Runtimes that fuse layers have no curves of single ones.
    return next((one for one in profiles if "additive" in one.estimators), profiles[0])


def _choose_curve(
    here: Dashboard, profile: ProfileSummary, query: CurveQuery
) -> tuple[LayerCurve, list[dict[str, Any]], SampledCurve]:
    """Return the curve to show, descriptions of all that match the query, and its values."""
    wanted = {name: getattr(query, name) for name in _FILTERS}
    matching = find_layer_curves(here.list_curves(profile), **wanted)
    chosen = next((one for one in matching if one.key == query.layer), matching[0])
    sampled = sample_layer_curve(here.service.fit(profile.key), chosen)
    return chosen, [describe_layer_curve(one) for one in matching[:_MOST_LISTED]], sampled


def _list_values(curves: Sequence[LayerCurve], name: str) -> list[Any]:
    """Return the values of a filter, in order; image sizes by their number of pixels."""

    def sort_key(value: Any) -> tuple[int, Any]:
        sizes = str(value).split("x")
        is_size = all(size.isdecimal() for size in sizes)
        return (0, [int(size) for size in sizes]) if is_size else (1, value)

    return sorted({describe_layer_curve(one)[name] for one in curves} - {""}, key=sort_key)


# ---------------------------------------------------------------------------------------------
# Campaigns: live progress of profiling in any process with the same store

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


CampaignKey = Annotated[str, Path(max_length=40, description="Key of a campaign of the list.")]


@CAMPAIGNS.html
def show_campaigns(
    request: Request, here: Here, campaign: Annotated[str, Query(max_length=40)] = ""
) -> HTMLResponse:
    """Show all campaigns, and the chosen one or the latest."""
    campaigns = list_campaigns(here.settings.store)
    key = campaign or (campaigns[0].key if campaigns else "")
    details = find_campaign(key, here.settings.store) if key else None
    return render(
        request,
        "campaigns.html",
        campaigns=campaigns,
        chosen=details and details.campaign,
        report=details and details.report(),
        describe_state=describe_state,
        list_figures=list_campaign_figures,
    )


@CAMPAIGNS.json("All campaigns")
def get_campaigns(here: Here) -> CampaignList:
    """Return the campaigns of the store, those of other processes and machines included."""
    return CampaignList(tuple(list_campaigns(here.settings.store)))


@CAMPAIGNS.router.get("/api/campaigns/events", include_in_schema=False)
async def follow_campaigns(request: Request, here: Here) -> StreamingResponse:
    """Send the state of all campaigns whenever it changes, as server-sent events."""
    if len(here.streams) >= _MOST_STREAMS:
        raise HTTPException(503, "too many pages follow campaigns: close some")
    return StreamingResponse(_send_changes(request, here), media_type="text/event-stream")


@CAMPAIGNS.router.get("/api/campaigns/{key}", summary="One campaign and its progress")
def get_campaign(here: Here, key: CampaignKey) -> CampaignHistory:
    """Return a campaign, and how its uncertainty fell."""
    found = find_campaign(key, here.settings.store)
    return CampaignHistory(found.campaign, found.progress)


@CAMPAIGNS.router.post("/api/campaigns/{key}/stop", summary="Stop a campaign")
def post_stop(here: Here, key: CampaignKey) -> RecordedCampaign:
    """Ask a campaign to end after its current measurement; what it measured is kept and fitted.

    The body is an empty JSON object.
    """
    return stop_campaign(key, here.settings.store)


async def _send_changes(request: Request, here: Dashboard) -> AsyncIterator[str]:
    own, last = object(), ""
    here.streams.add(own)
    try:
        # Browsers that lost the connection try again after this time.
        yield "retry: 3000\n\n"
        while not await request.is_disconnected():
            found = await run_in_threadpool(list_campaigns, here.settings.store)
            states = [[one.key, one.changed_at_s, one.is_stop_requested] for one in found]
            text = json.dumps(states)
            # A comment keeps proxies from closing a silent connection.
            yield ": waiting\n\n" if text == last else f"event: campaigns\ndata: {text}\n\n"
            last = text
            await asyncio.sleep(_POLL_S)
    finally:
        here.streams.discard(own)


# ---------------------------------------------------------------------------------------------
# Fleet


class FleetDeviceData(BaseModel):
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


@FLEET.html
def show_fleet(request: Request, here: Here) -> HTMLResponse:
    """Show the fleet of the store."""
    status = _find_fleet(here)
    return render(request, "fleet.html", report=None if status is None else status.report())


@FLEET.json("Devices, queue and faults")
def get_fleet(here: Here) -> FleetData:
    """Return what the store knows about the fleet."""
    status = _find_fleet(here)
    if status is None:
        return FleetData(False, (), ())
    devices = tuple(
        # The payload is left out: what the fleet file says about a device may contain its token.
        FleetDeviceData(**vars(one), observation_count=status.points.get(one.profile_key, 0))
        for one in status.devices
    )
    return FleetData(status.is_up, devices, status.campaigns)


def _find_fleet(here: Dashboard) -> FleetStatus | None:
    """Return the fleet of the store; None if it has none."""
    try:
        return find_fleet_status(here.settings.store)
    except MissingError:
        return None
