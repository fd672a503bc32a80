"""Devices: all profiles, with what they rest on and how accurate they are, and the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from joulecast.catalogue import DATASHEET, DataSheet
from joulecast.features.device_overview import (
    DeviceOverview,
    ProfileDetails,
    list_stored_evaluations,
    read_profile_details,
    summarise_device,
)
from joulecast.features.profiles import SHORT_KEY
from joulecast.records import FLOAT_PRECISIONS
from joulecast.store import Store, open_store
from joulecast.web.page_data import describe_age, find_page_data
from joulecast.web.rendering import DashboardPage, render

router = APIRouter(tags=["devices"])


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


@router.get("/devices", include_in_schema=False, response_class=HTMLResponse)
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


@router.get("/api/devices", summary="All profiles and the catalogue", response_model=DeviceList)
def list_devices(request: Request) -> DeviceList:
    """Return every profile with meter, coverage, provenance, age, accuracy and score.

    Devices that were never measured follow with the figures of their data sheets.
    """
    data = find_page_data(request)
    with open_store(data.store, create=False) as opened:
        evaluations = list_stored_evaluations(opened)
        found = []
        for summary in data.service.list_profiles():
            read = partial(_read_details, opened, summary.key)
            details = data.keep_details(summary, read)
            found.append(summarise_device(summary, details, evaluations))
    unmeasured = map(_describe_sheet, data.service.list_unmeasured())
    return DeviceList(tuple(found), tuple(unmeasured))


def _describe_sheet(sheet: DataSheet) -> CatalogueRow:
    return CatalogueRow(
        sheet.name,
        sheet.title,
        DATASHEET,
        dict(sheet.flops_per_s),
        sheet.bytes_per_s,
        sheet.memory_bytes,
        sheet.power_limit_w,
    )


def _read_details(store: Store, key: str) -> ProfileDetails:
    return read_profile_details(store.load_profile(key))


PAGE = DashboardPage(
    "/devices",
    "Devices",
    "Profiles of devices: meter, provenance, age, observations, accuracy and score; the catalogue.",
    router,
)
