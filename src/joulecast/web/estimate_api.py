"""Answer programs: estimates of networks, and networks from uploaded files.

    POST /api/estimate     a family or a network, a setup, a device  ──▶  energy, interval, layers
    POST /api/networks     a network file (JSON), or the bytes of an ONNX file  ──▶  a network

Both take data only. A family is looked up by its name; no name is a file or a function here.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from joulecast.budgets import MAX_COUNT
from joulecast.errors import InputError
from joulecast.features.estimate_service import EstimateAnswer, EstimateQuestion, EstimateService
from joulecast.features.nets import require_packages
from joulecast.features.parallel import MOST_GPUS, ParallelOptions
from joulecast.features.run import make_bill
from joulecast.files import decode_network
from joulecast.input_files import parse_json
from joulecast.records import OPTIMIZERS, PRECISIONS, Network
from joulecast.records.trial import LOSSES, PHASES
from joulecast.units import battery_share, parse_energy
from joulecast.web.data_routes import DataRoute
from joulecast.web.monitoring import find_metrics
from joulecast.web.work_queue import find_work_queue

ONNX = "application/octet-stream"
_LARGEST_SIZE = 1_000_000
_UPLOADED = "the uploaded file"
router = APIRouter(tags=["estimates"], route_class=DataRoute)


def _choose(values: tuple[str, ...]) -> Any:
    return Field(default=None, json_schema_extra={"enum": [*values, None]})


class SetupFields(BaseModel):
    """How a network is trained or run; what is left out has the default of `joulecast estimate`."""

    model_config = ConfigDict(extra="forbid")

    batch: Annotated[int | None, Field(ge=1, le=_LARGEST_SIZE)] = None
    phase: str | None = _choose(PHASES)
    precision: str | None = _choose(PRECISIONS)
    optimizer: str | None = _choose(OPTIMIZERS)
    loss: str | None = _choose(LOSSES)
    threads: Annotated[int | None, Field(ge=0, le=100_000)] = None
    processor: Annotated[str | None, Field(max_length=100)] = None
    cuda_graphs: bool | None = None
    accumulate: Annotated[int | None, Field(ge=1, le=_LARGEST_SIZE)] = None
    compiled: bool | None = None


class EstimateQuery(BaseModel):
    """A network, how it is trained or run, for how long, and on which device."""

    model_config = ConfigDict(extra="forbid")

    device: str = Field(
        min_length=1,
        max_length=200,
        description="A device with a profile, a profile's key, or a device of the catalogue.",
    )
    net: Annotated[str | None, Field(max_length=200)] = Field(
        default=None, description="A family with its parameters, like `cnn5:16,32,64,128`."
    )
    network: dict[str, Any] | None = Field(
        default=None, description="A network as `/api/networks` returns it, instead of `net`."
    )
    input_shape: Annotated[
        list[Annotated[int, Field(ge=1, le=_LARGEST_SIZE)]] | None,
        Field(min_length=1, max_length=8),
    ] = Field(default=None, description="Shape of one sample, where it is not the family's own.")
    setup: SetupFields = SetupFields()
    gpus: int = Field(
        default=1, ge=1, le=MOST_GPUS, description="GPUs that train together; `batch` is of each."
    )
    parallel: str = Field(default="", max_length=20, description="How they do: `data`.")
    link_gb_s: Annotated[float | None, Field(gt=0, le=1e6)] = Field(
        default=None, description="Bandwidth between them, where the catalogue has none."
    )
    steps: int = Field(default=1, ge=1, le=MAX_COUNT, description="Steps of the run.")
    level: float = Field(default=0.95, gt=0, lt=1, description="Probability of the interval.")
    estimator: str = Field(default="auto", max_length=50)
    grid: Annotated[str | None, Field(max_length=40)] = Field(
        default=None, description="Grams of CO2e per kWh, or a region like `de`."
    )
    price: Annotated[str | None, Field(max_length=40)] = Field(
        default=None, description="Price of a kWh, like `0.30EUR`."
    )
    battery: Annotated[str | None, Field(max_length=40)] = Field(
        default=None, description="Energy of a battery, like `15Wh`."
    )

    @model_validator(mode="after")
    def check_net(self) -> EstimateQuery:
        """Raise ValueError unless there is one net."""
        if (self.net is None) == (self.network is None):
            raise ValueError("give either net or network")
        return self

    def make_question(self) -> EstimateQuestion:
        """Return the question that the service answers.

        Raises:
            FileError: The network is invalid.
        """
        net = self.net if self.network is None else decode_network(self.network, "network")
        assert net is not None
        setup = self.setup.model_dump(exclude_none=True)
        shape = None if self.input_shape is None else tuple(self.input_shape)
        gpus = ParallelOptions(self.gpus, self.parallel, self.link_gb_s)
        return EstimateQuestion(net, self.device, setup, shape, self.level, self.estimator, gpus)


class ReplyLayer(BaseModel):
    """The energy of one layer in a step."""

    name: str
    kind: str
    energy_j: float
    calls: int = 1
    seen: bool = True


class EstimateReply(BaseModel):
    """Energy and duration of a step and of the run, and what they rest on."""

    model_config = ConfigDict(extra="allow")

    energy_j: float = Field(description="Mean energy of a step.")
    interval_j: tuple[float, float] = Field(description="Credible interval of the energy.")
    level: float
    duration_s: float
    peak_memory_bytes: int
    fits_memory: bool | None
    layers: list[ReplyLayer]
    unseen_share: float
    provenance: str = Field(description="measured, imported, modelled, datasheet or simulated.")
    covers: str = Field(description="What the meter behind it covers.")
    device: str
    estimator: str
    runtime: str
    notes: list[str]
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


class NetworkReply(BaseModel):
    """A network that was read from an upload."""

    name: str
    layer_count: int
    batch: int | None = Field(description="The batch size that the file fixes.")
    network: dict[str, Any]


@router.post("/api/estimate", response_model=EstimateReply)
async def post_estimate(query: EstimateQuery, request: Request) -> JSONResponse:
    """Estimate the energy of a network before it runs."""
    service: EstimateService = request.app.state.estimate_service
    reply, is_repeated = await find_work_queue(request).run(answer_query, service, query)
    find_metrics(request).estimates.labels(str(is_repeated).lower()).inc()
    return JSONResponse(reply)


@router.post(
    "/api/networks",
    response_model=NetworkReply,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"type": "object"}},
                ONNX: {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
)
async def post_network(
    request: Request,
    input_shape: Annotated[
        str | None,
        Query(pattern=r"^[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,7}$", description="Like `3x96x96`."),
    ] = None,
) -> JSONResponse:
    """Read a network file or the bytes of an ONNX file, and return the network."""
    content = await request.body()
    is_onnx = request.headers.get("content-type", "").partition(";")[0].strip().lower() == ONNX
    sizes = None if input_shape is None else tuple(map(int, input_shape.split("x")))
    read = read_onnx_upload if is_onnx else read_json_upload
    return JSONResponse(await find_work_queue(request).run(read, content, sizes))


def answer_query(service: EstimateService, query: EstimateQuery) -> tuple[dict[str, Any], bool]:
    """Return the reply to a query, and whether the same question was answered before."""
    answer = service.answer(query.make_question())
    return describe_answer(answer, query), answer.is_repeated


def describe_answer(answer: EstimateAnswer, query: EstimateQuery) -> dict[str, Any]:
    """Return an answer as JSON values, with the units that were asked for.

    Raises:
        InputError: A unit cannot be read, or a total is too large for a number.
    """
    found = answer.estimate
    bill = make_bill(query.steps, query.grid, query.price)
    totals = bill.compute_totals(found.energy_j, found.interval_j, found.duration_s)
    if query.battery is not None:
        battery_j = parse_energy(query.battery)
        totals["battery_share"] = battery_share(totals["total_energy_j"], battery_j)
    _check_totals(totals)
    return {
        **found.to_dict(),
        "fits_memory": found.fits_memory,
        "net": answer.network.name,
        "setup": answer.setup.to_dict(),
        "gpus": found.gpus,
        "profile": answer.profile_key,
        "steps": query.steps,
        **totals,
    }


def read_json_upload(content: bytes, sizes: tuple[int, ...] | None) -> dict[str, Any]:
    """Return the network in the content of a network file.

    Raises:
        HTTPException: It is not JSON.
        InputError: It is not a network, or a size of inputs was given.
    """
    if sizes is not None:
        raise InputError("a network file has its input shape: leave input_shape out")
    try:
        data = parse_json(content)
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON ({error})") from error
    return _describe_network(decode_network(data, _UPLOADED), None)


def read_onnx_upload(content: bytes, sizes: tuple[int, ...] | None) -> dict[str, Any]:
    """Return the network in the content of an ONNX file; no file is opened.

    Raises:
        FileError: It is damaged, or not an ONNX model.
        NetError: The file leaves sizes open.
    """
    require_packages("reading ONNX files", {"onnx": "the package onnx"}, "onnx")
    from joulecast.runtimes.onnx_files.net_file import read_onnx_content

    found = read_onnx_content(content, _UPLOADED, sizes)
    return _describe_network(found.network, found.fixed_batch or None)


def _check_totals(totals: dict[str, Any]) -> None:
    """Raise InputError for a total that JSON has no number for."""
    for name, value in totals.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(
                f"{name} is too large: give fewer steps, or usual values of grid, price and battery"
            )


def _describe_network(network: Network, batch: int | None) -> dict[str, Any]:
    return {
        "name": network.name,
        "layer_count": len(network.layers),
        "batch": batch,
        "network": network.to_dict(),
    }
