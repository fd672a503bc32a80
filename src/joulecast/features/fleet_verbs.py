"""The verbs of ``joulecast fleet``: profile many devices at once, and choose among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, parse_list, select, verb
from joulecast.features.estimate import find_run_length
from joulecast.features.nets import NetRequest
from joulecast.features.options import EstimateOptions, ProfileOptions
from joulecast.features.profile import Acquisition, Interval, Missing, Points
from joulecast.records import Json, Setup, describe_inference, name_step
from joulecast.system.errors import InputError, MeasurementError
from joulecast.system.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_interval,
    format_share,
    parse_duration,
    parse_share,
)
from joulecast.views.report import Answer, Block, Report, Reportable, Text, make_table
from joulecast.views.words import (
    describe_setup,
    format_level,
    format_optional,
    is_inference,
    label_provenance,
    plural,
)

if TYPE_CHECKING:
    from joulecast.fleet.fleet_devices import DeviceCheck
    from joulecast.fleet.fleet_forecast import DeviceForecast, FleetEstimate
    from joulecast.store.campaigns import StoredCampaign

# Probabilities that are not worth printing.
_IMPOSSIBLE, _CERTAIN = 0.0005, 0.9995
_NEXT = "joulecast fleet profile NET --devices all"


def parse_charge(text: str) -> tuple[str, float]:
    """Return the device and the share of a text like ``phone=60%``."""
    name, separator, share = text.rpartition("=")
    if not separator:
        raise InputError("give a device and its charge, like phone=60%")
    return name, parse_share(share)


BundleFile = Annotated[str, Argument("The file to write: agent.pyz.", harm="writes a file")]
FleetDevices = Annotated[
    tuple[str, ...],
    Argument("Devices of the fleet, or all.", metavar="NAME,NAME", parse=parse_list, default="all"),
]
FleetSeconds = Annotated[
    float | None,
    Argument("Stop after this time on each device.", least=0.0, default="600, or --points"),
]
Detach = Annotated[bool, Argument("Request it and end: see `joulecast fleet status`.")]
Deadline = Annotated[
    float | None,
    Argument("Longest duration of the run.", option="deadline", metavar="2h", parse=parse_duration),
]
Confidence = Annotated[
    float,
    Argument(
        "Probability with which battery and deadline must suffice.",
        above=0.0,
        below=1.0,
        metavar="90%",
        parse=parse_share,
        default="90%",
    ),
]
Charges = Annotated[
    Any,
    Argument(
        "Charge of a device now, instead of that of the fleet file.",
        option="charge",
        metavar="NAME=60%",
        parse=parse_charge,
        is_repeated=True,
    ),
]


@verb
def bundle_fleet_agent(file: BundleFile) -> Answer:
    """Write the agent to FILE (agent.pyz), for devices without Joulecast.

    It needs Python 3.10 or later there, and the framework that trains: PyTorch or MNN.
    """
    from joulecast.features.agent_bundle import bundle_agent

    size_bytes = bundle_agent(file)
    text = f"Wrote {file} ({format_bytes(size_bytes)})."
    next_ = Text("Next: copy it to the device and run it there with python3.")
    return Answer({"file": file, "size_bytes": size_bytes}, Report(text, (next_,)))


@verb
def show_fleet_status(*, store: given.Store = None) -> Reportable:
    """Show the devices of the fleet, and how far their campaigns are."""
    from joulecast.features.fleet import find_fleet_status

    return find_fleet_status(store)


@verb
def profile_fleet(
    net: given.Net,
    *,
    devices: FleetDevices = ("all",),
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    optimizer: given.Optimizer = None,
    precision: given.Precision = None,
    loss: given.Loss = None,
    accumulate: given.Accumulate = None,
    compiled: given.Compiled = None,
    checkpoint: given.Checkpoint = False,
    threads: given.Threads = None,
    processor: given.Processor = None,
    cuda_graphs: given.CudaGraphs = None,
    phase: given.Phase = None,
    points: Points = None,
    interval_share: Interval = None,
    acquisition: Acquisition = None,
    missing: Missing = False,
    seconds: FleetSeconds = None,
    estimator: given.Estimator = "auto",
    rounds: given.Rounds = 3,
    detach: Detach = False,
    store: given.Store = None,
    on_progress: Callable[[Sequence[StoredCampaign]], None] | None = None,
) -> FleetCampaigns:
    """Profile devices of the fleet with layers like those of NET.

    The fleet must be up (`joulecast fleet up`); it runs the campaigns, also if this command is
    interrupted. A device that stays away is parked and reported, and goes on when it is back.
    """
    from joulecast.features.fleet import follow_request, request_profiles

    resolved, setup = NetRequest.of(locals()).resolve()
    profiling = ProfileOptions(
        points=points,
        seconds=seconds,
        interval_share=0.05 if interval_share is None else interval_share,
        acquisition="missing" if missing else acquisition or "target",
        estimator=estimator,
    )
    key = request_profiles(resolved, setup, devices, profiling, rounds, store)
    campaigns = follow_request(key, store, on_progress, waits=not detach)
    data = {"network": resolved.network.name, "devices": [asdict(one) for one in campaigns]}
    return FleetCampaigns(data, _report_campaigns(campaigns), tuple(campaigns), detach)


@verb
def forecast_on_fleet(
    net: given.Net,
    inputs: Any = None,
    *,
    setup: Setup | None = None,
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    optimizer: given.Optimizer = None,
    precision: given.Precision = None,
    loss: given.Loss = None,
    accumulate: given.Accumulate = None,
    compiled: given.Compiled = None,
    checkpoint: given.Checkpoint = False,
    threads: given.Threads = None,
    processor: given.Processor = None,
    cuda_graphs: given.CudaGraphs = None,
    phase: given.Phase = None,
    steps: given.Steps = None,
    inferences: given.Inferences = None,
    epochs: given.Epochs = None,
    samples: given.Samples = None,
    deadline_s: Deadline = None,
    confidence: Confidence = 0.9,
    charges: Charges = None,
    estimator: given.Estimator = "auto",
    level: given.Level = 0.95,
    store: given.Store = None,
) -> FleetForecast:
    """Estimate a run of NET on every device, and who can finish it.

    For every device: joules with an interval, seconds, the share of its battery, and what prevents
    it from finishing (memory, battery or deadline). With --json, a scheduler such as Flower's can
    choose the clients of a round.
    """
    from joulecast.features.fleet import forecast_net
    from joulecast.fleet.fleet_forecast import RunQuestion

    length = find_run_length(steps, inferences, epochs, samples, phase)
    resolved, setup = NetRequest.of(locals()).resolve()
    count = length.count_steps(setup.samples_per_step)
    question = RunQuestion(count, deadline_s, confidence, dict(charges or {}))
    options = EstimateOptions(estimator, level, store)
    found = forecast_net(resolved, setup, question, options)
    data = found.to_dict()
    for row, one in zip(data["devices"], found.devices, strict=True):
        latency_s = _find_latency(one, found.steps)
        row.update(describe_inference(found.setup, one.step_energy_j, latency_s))
    return FleetForecast(data, _report_forecast(found), found)


estimate_fleet = select(
    forecast_on_fleet,
    lambda found: found.estimate,
    "estimate_fleet",
    """Forecast a run on every device of a fleet: joules, seconds, battery, and who can finish.""",
)


@dataclass(frozen=True)
class FleetCampaigns(Answer):
    """Campaigns that were requested of a fleet; detached if nobody waited for them."""

    campaigns: tuple[StoredCampaign, ...]
    is_detached: bool

    def finish_command(self) -> int:
        from joulecast.store.campaigns import DONE

        left = [one for one in self.campaigns if one.state != DONE]
        if left and not self.is_detached:
            raise MeasurementError(
                f"{len(left)} of {len(self.campaigns)} devices have no new profile; "
                f"{left[0].device}: {left[0].reason}"
            )
        return 0


@dataclass(frozen=True)
class FleetForecast(Answer):
    """What a run takes on every device of a fleet."""

    estimate: FleetEstimate


def answer_checks(checks: Sequence[DeviceCheck]) -> Answer:
    """Return what the devices of a fleet answered."""
    names = ("state", "reason", "profile_key", "description")
    data: list[Json] = [
        {"name": one.device.name, **{name: getattr(one, name) for name in names}} for one in checks
    ]
    rows = [(one.device.name, one.state, one.description or one.device.address) for one in checks]
    ready = sum(one.is_ready for one in checks)
    blocks: tuple[Block, ...] = (
        make_table(("device", "state", "~found"), rows),
        *(Text(f"{one.device.name}: {one.reason}", "note") for one in checks if one.reason),
        Text(f"{ready} of {plural(len(checks), 'device')} ready. Next, elsewhere: {_NEXT}"),
    )
    return Answer({"devices": data}, Report("", blocks, kind="fleet"))


def _report_campaigns(campaigns: Sequence[StoredCampaign]) -> Report:
    from joulecast.features.fleet import CAMPAIGN_COLUMNS, list_campaign_cells
    from joulecast.store.campaigns import DONE

    rows = map(list_campaign_cells, campaigns)
    done = sum(one.state == DONE for one in campaigns)
    name = campaigns[0].name if campaigns else "NET"
    blocks = (
        make_table(CAMPAIGN_COLUMNS, rows),
        Text(f"{done} of {plural(len(campaigns), 'device')} profiled."),
        Text(f"Next: joulecast fleet estimate {name} --steps 1000", "command"),
    )
    return Report("", blocks, kind="fleet")


def _report_forecast(found: FleetEstimate) -> Report:
    verb_ = "Running" if is_inference(found.setup) else "Training"
    count = plural(found.steps, name_step(found.setup))
    limit = "" if found.deadline_s is None else f" within {format_duration(found.deadline_s)}"
    title = f"{verb_} {found.network} ({describe_setup(found.setup)}) for {count}{limit}"
    latency = [">latency"] if is_inference(found.setup) else []
    columns = (
        "device", ">energy", format_level(found.level), ">time", *latency, ">battery", "finishes",
        "~why not",
    )  # fmt: skip
    rows = [_make_forecast_row(one, found) for one in found.devices]
    able = [one for one in found.devices if one.can_finish]
    answer = (
        f"{len(able)} of {plural(len(found.devices), 'device')} can finish, with a probability of "
        f"at least {format_share(found.confidence)}."
    )
    return Report("", (make_table(columns, rows, title), Text(answer)), kind="fleet")


def _find_latency(one: DeviceForecast, steps: int) -> float | None:
    return None if one.duration_s is None else one.duration_s / steps


def _make_forecast_row(one: DeviceForecast, found: FleetEstimate) -> tuple[str, ...]:
    answer = {True: "yes", False: "no", None: "unknown"}[one.can_finish]
    if one.probability is not None and _IMPOSSIBLE < one.probability < _CERTAIN:
        answer += f", {format_share(one.probability)}"
    durations_s = [one.duration_s]
    durations_s += [_find_latency(one, found.steps)] if is_inference(found.setup) else []
    times = [format_optional(duration_s, format_duration) for duration_s in durations_s]
    if one.energy_j is None or one.interval_j is None:
        return one.name, "-", "-", *times, "-", answer, one.reason
    return (
        one.name,
        format_energy(one.energy_j) + label_provenance(one.provenance),
        format_interval(one.interval_j, format_energy),
        *times,
        format_optional(one.battery_share, format_share),
        answer,
        f"{one.obstacle}: {one.reason}" if one.obstacle else "",
    )
