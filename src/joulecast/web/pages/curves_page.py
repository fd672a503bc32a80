"""Curves: the energy of a layer over its widths, with measured points and the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from joulecast.errors import JoulecastError, MissingError
from joulecast.features.layer_curves import (
    LayerCurve,
    describe_layer_curve,
    find_layer_curve,
    sample_layer_curve,
)
from joulecast.features.profiles import SHORT_KEY
from joulecast.figures import Caption, EmbeddedPlot, SampledCurve, embed_plot, plot_curve
from joulecast.store import ProfileSummary
from joulecast.units import format_energy
from joulecast.web.page_data import PageData, find_page_data
from joulecast.web.rendering import DashboardPage, render
from joulecast.web.work_queue import answer_json, find_work_queue

router = APIRouter(tags=["curves"])
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


@router.get("/curves", include_in_schema=False, response_class=HTMLResponse)
async def show_curves(request: Request, query: Asked) -> HTMLResponse:
    """Show the curve of a layer."""
    return await find_work_queue(request).run(_render_curves, request, query)


@router.get(
    "/api/curves", summary="The energy of a layer over its widths", response_model=CurveData
)
async def get_curve(request: Request, query: Asked) -> Response:
    """Return predicted energies on a grid, with standard deviations and measured points."""
    return await answer_json(request, _find_curve, find_page_data(request), query)


def _render_curves(request: Request, query: CurveQuery) -> HTMLResponse:
    data = find_page_data(request)
    profiles = data.service.list_profiles()
    context: dict[str, Any] = {
        "query": query,
        "profiles": profiles,
        "short_key": SHORT_KEY,
        "error": "",
        "chosen": None,
        "curve": None,
        "filters": {},
        "layers": (),
        "plot": None,
    }
    status = 200
    try:
        chosen = context["chosen"] = _choose_profile(data, query)
        curves = data.list_curves(chosen)
        context["filters"] = {
            name: (title, _list_values(curves, name)) for name, title in _FILTERS.items()
        }
        curve, matching = _choose_curve(curves, query)
        sampled = sample_layer_curve(data.service.fit(chosen.key), curve)
        context |= {
            "curve": describe_layer_curve(curve),
            "layers": [describe_layer_curve(one) for one in matching[:_MOST_LISTED]],
            "sampled": sampled,
            "plot": _make_plot(sampled, curve, chosen),
            "format_energy": format_energy,
        }
    except JoulecastError as error:
        context["error"], status = str(error), 404 if isinstance(error, MissingError) else 422
        if not profiles:
            context["error"], status = "", 200
    response = render(request, "curves.html", **context)
    response.status_code = status
    return response


def _find_curve(data: PageData, query: CurveQuery) -> CurveData:
    chosen = _choose_profile(data, query)
    curve, matching = _choose_curve(data.list_curves(chosen), query)
    sampled = sample_layer_curve(data.service.fit(chosen.key), curve)
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
            for one in sampled.training_points
        ),
        sampled.next_point[0] if sampled.next_point else (),
        tuple(describe_layer_curve(one) for one in matching[:_MOST_LISTED]),
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
    curves: Sequence[LayerCurve], query: CurveQuery
) -> tuple[LayerCurve, list[LayerCurve]]:
    """Return the curve to show, and all that match the query."""
    first = find_layer_curve(curves, **query.filters)
    matching = [one for one in curves if _has_values(one, query.filters)]
    chosen = next((one for one in matching if one.key == query.layer), first)
    return chosen, matching


def _has_values(curve: LayerCurve, wanted: dict[str, Any]) -> bool:
    facts = describe_layer_curve(curve)
    return all(facts[name] == value for name, value in wanted.items())


def _list_values(curves: Sequence[LayerCurve], name: str) -> list[Any]:
    """Return the values of a filter, in order; image sizes by their number of pixels."""
    values = {describe_layer_curve(one)[name] for one in curves}
    return sorted(values - {""}, key=_sort_key)


def _sort_key(value: Any) -> tuple[int, Any]:
    sizes = str(value).split("x")
    if all(size.isdecimal() for size in sizes):
        return 0, [int(size) for size in sizes]
    return 1, value


def _make_plot(sampled: SampledCurve, curve: LayerCurve, profile: ProfileSummary) -> EmbeddedPlot:
    facts = describe_layer_curve(curve)
    subtitle = (
        f"{profile.device}, {profile.runtime}, batch size {facts['batch']}, {facts['precision']}; "
        f"n = {facts['point_count']}"
    )
    caption = Caption(subtitle=subtitle, provenance=profile.provenance)
    return embed_plot(plot_curve(sampled, caption, with_interval=True))


PAGE = DashboardPage(
    "/curves",
    "Curves",
    "The energy of a layer over its widths, with measured points and the most useful next one.",
    router,
)
