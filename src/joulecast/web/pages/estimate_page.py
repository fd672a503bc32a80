"""Estimate: move sliders and see energy, time, memory and cost of a network change.

The page asks ``POST /api/estimate``. What a family has to choose is described by ``/api/families``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from joulecast.families import FAMILIES, WIDEST, Family
from joulecast.features.catalogue import summarise_sheet
from joulecast.features.estimate_service import MOST_SERVED_DEPTH, is_depth
from joulecast.features.parallel import MOST_GPUS
from joulecast.features.profiles import SHORT_KEY
from joulecast.records import FLOAT_PRECISIONS, OPTIMIZERS
from joulecast.store import ProfileSummary
from joulecast.units import GRIDS
from joulecast.web.page_data import find_page_data
from joulecast.web.rendering import DashboardPage, render

router = APIRouter(tags=["families"])
# A slider goes this far beyond the original network; a number may be typed beyond that.
_SLIDER_RANGE = 2
_LARGEST_KERNEL = 63
_KERNEL_SIZE = "kernel size"


@dataclass(frozen=True)
class FamilyParameter:
    """A parameter of a family.

    Attributes:
        role: ``width``, ``depth`` or ``kernel size``.
        value: That of the original network.
        step: Its values are multiples of this; kernel sizes are odd.
        slider_most: End of a slider.
        most: The largest value.
    """

    name: str
    role: str
    value: int
    least: int
    step: int
    slider_most: int
    most: int


@dataclass(frozen=True)
class FamilyDescription:
    """A family of networks: its parameters, and its usual input and batch size."""

    name: str
    description: str
    parameters: tuple[FamilyParameter, ...]
    input_shape: tuple[int, ...]
    batch: int


@dataclass(frozen=True)
class FamilyList:
    """All families."""

    families: tuple[FamilyDescription, ...]


@router.get("/estimate", include_in_schema=False, response_class=HTMLResponse)
def show_estimate(request: Request) -> HTMLResponse:
    """Show the page; its script asks for estimates."""
    service = find_page_data(request).service
    profiles = service.list_profiles()
    unmeasured = [summarise_sheet(one) for one in service.list_unmeasured()]
    return render(
        request,
        "estimate.html",
        families=list_families().families,
        choices={
            "families": [_to_json(one) for one in list_families().families],
            "devices": [
                *(_describe_device(one, one.key[:SHORT_KEY]) for one in profiles),
                # A data sheet has no key to look it up by.
                *(_describe_device(one, one.device) for one in unmeasured),
            ],
        },
        profiles=profiles,
        unmeasured=unmeasured,
        short_key=SHORT_KEY,
        precisions=FLOAT_PRECISIONS,
        optimizers=OPTIMIZERS,
        most_gpus=MOST_GPUS,
        regions=sorted(GRIDS),
    )


@router.get("/api/families", summary="Families of networks", response_model=FamilyList)
def list_families() -> FamilyList:
    """Return every family of networks with its parameters."""
    return FamilyList(tuple(describe_family(name, row) for name, row in FAMILIES.items()))


def describe_family(name: str, family: Family) -> FamilyDescription:
    """Return what there is to choose of a family."""
    parameters = (_describe_parameter(family, *one) for one in family.params.items())
    shape = family.input.shape
    return FamilyDescription(name, family.description, tuple(parameters), shape, family.batch)


def _describe_parameter(family: Family, name: str, value: int) -> FamilyParameter:
    if name in family.kernels:
        return FamilyParameter(name, _KERNEL_SIZE, value, 1, 2, value + 4, _LARGEST_KERNEL)
    step = family.steps.get(name, 1)
    is_deep = is_depth(name)
    role, most = ("depth", MOST_SERVED_DEPTH) if is_deep else ("width", WIDEST)
    slider_most = max(_SLIDER_RANGE * value, 12 if is_deep else 64)
    return FamilyParameter(name, role, value, step, step, slider_most, most - most % step)


def _describe_device(profile: ProfileSummary, key: str) -> dict[str, Any]:
    return {
        "key": key,
        "device": profile.device,
        "power_mode": profile.power_mode,
        "runtime": profile.runtime,
        "covers": profile.covers,
        "provenance": profile.provenance,
        "is_shipped": profile.shipped,
    }


def _to_json(family: FamilyDescription) -> dict[str, Any]:
    parameters = [vars(one) for one in family.parameters]
    return {**vars(family), "parameters": parameters, "input_shape": list(family.input_shape)}


PAGE = DashboardPage(
    "/estimate",
    "Estimate",
    "Energy, time, memory and cost of a network before it runs, and where the energy goes.",
    router,
)
