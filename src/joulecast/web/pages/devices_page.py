"""Devices: all profiles, with what they rest on and how accurate they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from joulecast.api.device_overview import (
    DeviceOverview,
    ProfileDetails,
    list_stored_evaluations,
    read_profile_details,
    summarise_device,
)
from joulecast.api.profiles import SHORT_KEY
from joulecast.store import Store, open_store
from joulecast.web.page_data import describe_age, find_page_data
from joulecast.web.rendering import DashboardPage, render

router = APIRouter(tags=["devices"])


@dataclass(frozen=True)
class DeviceList:
    """All profiles.

    Attributes:
        profiles: Those of the store by age, then shipped ones.
    """

    profiles: tuple[DeviceOverview, ...]


@router.get("/devices", include_in_schema=False, response_class=HTMLResponse)
def show_devices(request: Request) -> HTMLResponse:
    """Show all profiles."""
    found = list_devices(request)
    return render(
        request,
        "devices.html",
        profiles=found.profiles,
        short_key=SHORT_KEY,
        describe_age=describe_age,
    )


@router.get("/api/devices", summary="All profiles", response_model=DeviceList)
def list_devices(request: Request) -> DeviceList:
    """Return every profile with meter, coverage, provenance, age, accuracy and score."""
    data = find_page_data(request)
    with open_store(data.store, create=False) as opened:
        evaluations = list_stored_evaluations(opened)
        found = []
        for summary in data.service.list_profiles():
            read = partial(_read_details, opened, summary.key)
            details = data.keep_details(summary, read)
            found.append(summarise_device(summary, details, evaluations))
    return DeviceList(tuple(found))


def _read_details(store: Store, key: str) -> ProfileDetails:
    return read_profile_details(store.load_profile(key))


PAGE = DashboardPage(
    "/devices",
    "Devices",
    "Profiles of devices: meter, provenance, age, observations, accuracy and score.",
    router,
)
