"""Estimates: for programs, and a page with sliders that asks as programs do.

    POST /api/estimate     a family or a network, a setup, a device  ──▶  energy, interval, layers
    POST /api/networks     a network file (JSON), or the bytes of an ONNX file  ──▶  a network
    GET /api/families      what each family of networks has to choose

All take data only. A family is looked up by its name; no name is a file or a function here.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from fastapi import HTTPException, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from joulecast.families import FAMILIES, WIDEST, Family
from joulecast.features.arguments import Declaration, list_arguments
from joulecast.features.catalogue import summarise_sheet
from joulecast.features.estimate import estimate_run
from joulecast.features.estimate_service import (
    MOST_SERVED_DEPTH,
    EstimateQuestion,
    EstimateService,
    is_depth,
)
from joulecast.features.nets import require_packages
from joulecast.features.profiles import SHORT_KEY
from joulecast.features.run import MOST_GPUS, ParallelOptions
from joulecast.records import FLOAT_PRECISIONS, OPTIMIZERS, Estimate
from joulecast.store.files import decode_network
from joulecast.system.errors import InputError
from joulecast.system.files import parse_json
from joulecast.system.units import GRIDS
from joulecast.web.answers import DashboardPage, render
from joulecast.web.dashboard import Here

PAGE = DashboardPage(
    "/estimate",
    "Estimate",
    "Energy, time, memory and cost of a network before it runs, and where the energy goes.",
)
ONNX = "application/octet-stream"
_UPLOADED = "the uploaded file"
_LARGEST_SIZE, _LONGEST_TEXT, _MOST_SIZES = 1_000_000, 200, 8


# ---------------------------------------------------------------------------------------------
# Questions: their fields are those arguments of ``estimate_run`` that are data

_SETUP = (
    "batch", "phase", "precision", "optimizer", "loss", "threads", "processor", "cuda_graphs",
    "accumulate", "compiled",
)  # fmt: skip
_RUN = (
    "input_shape", "gpus", "parallel", "link_gb_s", "steps", "level", "estimator", "grid", "price",
    "battery",
)  # fmt: skip
# Where the command line has no limit.
_MOST = {"gpus": MOST_GPUS, "threads": 100_000}


def _make_fields(names: tuple[str, ...]) -> dict[str, Any]:
    """Return type and field of arguments of ``estimate_run``."""
    declared = {one.name: one for one in list_arguments(estimate_run)}
    return {name: _make_field(declared[name]) for name in names}


def _make_field(one: Declaration) -> tuple[Any, Any]:
    about = one.about
    kind: Any = str if about.choices else one.type
    options: dict[str, Any] = {}
    if one.name == "input_shape":
        kind = list[Annotated[int, Field(ge=1, le=_LARGEST_SIZE)]]
        options = {"min_length": 1, "max_length": _MOST_SIZES}
    elif kind is str:
        options["max_length"] = _LONGEST_TEXT
    elif kind in (int, float):
        most = about.most if about.most is not None else _MOST.get(one.name, _LARGEST_SIZE)
        options = {"ge": about.least, "gt": about.above, "lt": about.below}
        options["le"] = most if about.below is None else None
    extra: Any = {"enum": [*about.choices, None]} if about.choices else None
    text = re.sub(r"--([a-z-]+)", lambda found: f"`{found[1].replace('-', '_')}`", about.help)
    field = Field(default=None, description=text, json_schema_extra=extra)
    return Annotated[kind, Field(**options)] | None, field


class Question(BaseModel):
    """How a network is trained or run; what is left out has the default of `joulecast estimate`."""

    model_config = ConfigDict(extra="forbid")


class DeviceAndNet(Question):
    """A network, how it is trained or run, for how long, and on which device."""

    device: str = Field(
        min_length=1,
        max_length=_LONGEST_TEXT,
        description="A device with a profile, a profile's key, or a device of the catalogue.",
    )
    net: Annotated[str | None, Field(max_length=_LONGEST_TEXT)] = Field(
        default=None, description="A family with its parameters, like `cnn5:16,32,64,128`."
    )
    network: dict[str, Any] | None = Field(
        default=None, description="A network as `/api/networks` returns it, instead of `net`."
    )

    @model_validator(mode="after")
    def check_net(self) -> DeviceAndNet:
        """Raise ValueError unless there is one net."""
        if (self.net is None) == (self.network is None):
            raise ValueError("give either net or network")
        return self

    def answer(self, service: EstimateService) -> tuple[dict[str, Any], bool]:
        """Return the reply, and whether the same question was answered before."""
        given = self.model_dump(exclude_none=True)
        net = decode_network(given["network"], "network") if self.network else given["net"]
        chosen: dict[str, Any] = {
            name: given[name] for name in ("level", "estimator") if name in given
        }
        if "input_shape" in given:
            chosen["input_shape"] = tuple(given["input_shape"])
        gpus = given.get("gpus", 1), given.get("parallel", ""), given.get("link_gb_s")
        chosen["parallel"] = ParallelOptions(*gpus)
        answer = service.answer(EstimateQuestion(net, self.device, given["setup"], **chosen))
        units = {name: given.get(name) for name in ("grid", "price", "battery")}
        return answer.describe_run(given.get("steps", 1), **units), answer.is_repeated


if TYPE_CHECKING:
    EstimateQuery = DeviceAndNet
else:
    SetupFields = create_model("SetupFields", __base__=Question, **_make_fields(_SETUP))
    _FIELDS = {**_make_fields(_RUN), "setup": (SetupFields, SetupFields())}
    EstimateQuery = create_model("EstimateQuery", __base__=DeviceAndNet, **_FIELDS)


# ---------------------------------------------------------------------------------------------
# Replies


class RunReply(BaseModel):
    """Energy and duration of a step and of the run, and what they rest on."""

    model_config = ConfigDict(extra="allow")

    fits_memory: bool | None
    net: str
    setup: dict[str, Any]
    gpus: int
    profile: str = Field(description="Key of the profile.")
    steps: int
    total_energy_j: float
    total_interval_j: tuple[float, float]
    total_duration_s: float
    kwh: float
    co2e_g: float | None = None
    cost: float | None = None
    currency: str | None = None
    battery_share: float | None = None


# Fields of an Estimate that every reply has.
_STEP_FIELDS: dict[str, Any] = {
    one.name: (get_type_hints(Estimate)[one.name], ...)
    for one in fields(Estimate)
    if one.default is MISSING and one.default_factory is MISSING
}
EstimateReply: Any = create_model("EstimateReply", __base__=RunReply, **_STEP_FIELDS)


class NetworkReply(BaseModel):
    """A network that was read from an upload."""

    name: str
    layer_count: int
    batch: int | None = Field(description="The batch size that the file fixes.")
    network: dict[str, Any]


@PAGE.router.post("/api/estimate", response_model=EstimateReply)
async def post_estimate(query: EstimateQuery, here: Here) -> JSONResponse:
    """Estimate the energy of a network before it runs."""
    reply, is_repeated = await here.queue.run(query.answer, here.service)
    here.metrics.estimates.labels(str(is_repeated).lower()).inc()
    return JSONResponse(reply)


_UPLOADS = {
    "application/json": {"schema": {"type": "object"}},
    ONNX: {"schema": {"type": "string", "format": "binary"}},
}


@PAGE.router.post(
    "/api/networks",
    response_model=NetworkReply,
    openapi_extra={"requestBody": {"required": True, "content": _UPLOADS}},
)
async def post_network(
    request: Request,
    here: Here,
    input_shape: Annotated[
        str | None,
        Query(pattern=r"^[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,7}$", description="Like `3x96x96`."),
    ] = None,
) -> JSONResponse:
    """Read a network file or the bytes of an ONNX file, and return the network."""
    content = await request.body()
    is_onnx = request.headers.get("content-type", "").partition(";")[0].strip().lower() == ONNX
    sizes = None if input_shape is None else tuple(map(int, input_shape.split("x")))
    return JSONResponse(await here.queue.run(_read_upload, content, is_onnx, sizes))


def _read_upload(content: bytes, is_onnx: bool, sizes: tuple[int, ...] | None) -> dict[str, Any]:
    """Return the network in the content of a file; no file is opened."""
    batch: int | None = None
    if is_onnx:
        require_packages("reading ONNX files", {"onnx": "the package onnx"}, "onnx")
        from joulecast.onnx_nets.net_file import read_onnx_content

        found = read_onnx_content(content, _UPLOADED, sizes)
        network, batch = found.network, found.fixed_batch or None
    elif sizes is not None:
        raise InputError("a network file has its input shape: leave input_shape out")
    else:
        try:
            network = decode_network(parse_json(content), _UPLOADED)
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON ({error})") from error
    count = len(network.layers)
    data = network.to_dict()
    return {"name": network.name, "layer_count": count, "batch": batch, "network": data}


# ---------------------------------------------------------------------------------------------
# Families, and the page

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


@PAGE.html
def show_estimate(request: Request, here: Here) -> HTMLResponse:
    """Show the page; its script asks for estimates."""
    profiles = here.service.list_profiles()
    unmeasured = [summarise_sheet(one) for one in here.service.list_unmeasured()]
    families = asdict(list_families())["families"]
    # A data sheet has no key to look it up by.
    keys = [*(one.key[:SHORT_KEY] for one in profiles), *(one.device for one in unmeasured)]
    devices = zip((*profiles, *unmeasured), keys, strict=True)
    return render(
        request,
        "estimate.html",
        families=families,
        choices={
            "families": families,
            "devices": [{**one.to_dict(), "key": key} for one, key in devices],
        },
        profiles=profiles,
        unmeasured=unmeasured,
        short_key=SHORT_KEY,
        precisions=FLOAT_PRECISIONS,
        optimizers=OPTIMIZERS,
        most_gpus=MOST_GPUS,
        regions=sorted(GRIDS),
    )


@PAGE.router.get("/api/families", summary="Families of networks")
def list_families() -> FamilyList:
    """Return every family of networks with its parameters."""
    return FamilyList(
        tuple(
            FamilyDescription(
                name,
                family.description,
                tuple(_describe_parameter(family, *one) for one in family.params.items()),
                family.input.shape,
                family.batch,
            )
            for name, family in FAMILIES.items()
        )
    )


def _describe_parameter(family: Family, name: str, value: int) -> FamilyParameter:
    if name in family.kernels:
        return FamilyParameter(name, _KERNEL_SIZE, value, 1, 2, value + 4, _LARGEST_KERNEL)
    step = family.steps.get(name, 1)
    is_deep = is_depth(name)
    role, most = ("depth", MOST_SERVED_DEPTH) if is_deep else ("width", WIDEST)
    slider_most = max(_SLIDER_RANGE * value, 12 if is_deep else 64)
    return FamilyParameter(name, role, value, step, step, slider_most, most - most % step)
