"""Fleet: its devices, its queue of campaigns, and faults."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from joulecast.errors import MissingError
from joulecast.features.fleet import FleetStatus, find_fleet_status
from joulecast.reports.fleet_report import report_fleet
from joulecast.web.rendering import DashboardPage, render
from joulecast.web.web_settings import find_settings

router = APIRouter(tags=["fleet"])


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
class FleetCampaignData:
    """A campaign that was requested of a device.

    Attributes:
        state: ``waiting``, ``running``, ``away``, ``parked``, ``done`` or ``failed``.
    """

    request_key: str
    name: str
    device: str
    state: str
    reason: str
    points: int
    uncertainty_share: float | None
    elapsed_s: float
    requested_at_s: float


@dataclass(frozen=True)
class FleetData:
    """A fleet; without one, both lists are empty.

    Attributes:
        is_up: Whether a coordinator is running.
    """

    is_up: bool
    devices: tuple[FleetDeviceData, ...]
    campaigns: tuple[FleetCampaignData, ...]


@router.get("/fleet", include_in_schema=False, response_class=HTMLResponse)
def show_fleet(request: Request) -> HTMLResponse:
    """Show the fleet of the store."""
    status = _find_status(request)
    report = None
    if status is not None:
        report = report_fleet(status.devices, status.campaigns, status.points, is_up=status.is_up)
    return render(request, "fleet.html", report=report)


@router.get("/api/fleet", summary="Devices, queue and faults", response_model=FleetData)
def get_fleet(request: Request) -> FleetData:
    """Return what the store knows about the fleet."""
    status = _find_status(request)
    if status is None:
        return FleetData(False, (), ())
    devices = tuple(
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
    names = FleetCampaignData.__dataclass_fields__
    campaigns = tuple(
        FleetCampaignData(**{name: getattr(one, name) for name in names})
        for one in status.campaigns
    )
    return FleetData(status.is_up, devices, campaigns)


def _find_status(request: Request) -> FleetStatus | None:
    """Return the fleet of the store; None if it has none."""
    try:
        return find_fleet_status(find_settings(request).store)
    except MissingError:
        return None


PAGE = DashboardPage(
    "/fleet", "Fleet", "Devices elsewhere, what is requested of them, and what is wrong.", router
)
