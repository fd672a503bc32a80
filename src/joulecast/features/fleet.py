"""Profile many devices at once, and choose among them: the verbs of ``joulecast fleet``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, parse_list, select, verb
from joulecast.features.estimate import estimate_net, find_run_length
from joulecast.features.nets import NetRequest
from joulecast.features.profile import Acquisition, Interval, Missing, Points, ProfileOptions
from joulecast.features.profiles import SHORT_KEY
from joulecast.records import Estimate, Json, Setup, describe_inference, name_step
from joulecast.store import Store, open_store
from joulecast.store.places import IN_MEMORY, choose_place
from joulecast.system.errors import DeviceAwayError, InputError, MeasurementError, MissingError, arg
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
    format_time,
    is_inference,
    label_provenance,
    plural,
)

# Help of these verbs needs neither NumPy nor SQL.
if TYPE_CHECKING:
    from joulecast.fleet.fleet_devices import DeviceCheck
    from joulecast.fleet.fleet_forecast import DeviceForecast, FleetEstimate
    from joulecast.store.campaigns import StoredCampaign, StoredDevice

_NOT_UP = "start it with `joulecast fleet up FILE`, where FILE lists its devices"
# A command that only looks whether a fleet is up holds its claim for a moment.
_CLAIM_WAIT_S = 2.0
_POLL_S = 0.5
# Each uses up to 16 connections, and a PostgreSQL server has 100 by default.
_MOST_WORKERS = 4
_CHECK_UP_S = 5.0
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
def find_fleet_status(store: given.Store = None) -> FleetStatus:
    """Show the devices of the fleet, and how far their campaigns are."""
    with _open_fleet(store) as opened:
        counts = {one.key: one.observation_count for one in opened.list_profiles()}
        fleet = opened.fleet
        return FleetStatus(fleet.is_up(), fleet.list_devices(), fleet.list_campaigns(), counts)


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
    resolved, setup = NetRequest.of(locals()).resolve()
    from joulecast.estimators import check_estimator
    from joulecast.fleet.fleet_campaigns import CampaignRequest

    options = ProfileOptions(points=points, seconds=seconds)
    # Now, before devices are asked in vain.
    check_estimator(estimator)
    with _open_fleet(store) as opened:
        known = [one.name for one in opened.fleet.list_devices()]
        names = known if devices == ("all",) else devices
        for name in names:
            if name not in known:
                choices = f"give all, or some of {', '.join(known)}"
                raise InputError(f"the fleet has no device {name!r}: {choices}")
        if not opened.fleet.is_up():
            raise MissingError(f"the fleet is not up: {_NOT_UP}")
        request = CampaignRequest(
            resolved.network,
            setup,
            resolved.draw_members(),
            "missing" if missing else acquisition or "target",
            0.05 if interval_share is None else interval_share,
            estimator,
            rounds,
            points,
            options.limit_s,
        )
        key = opened.fleet.add_request(resolved.network.name, request.to_dict(), names)
    campaigns = follow_request(key, store, on_progress, waits=not detach)
    return FleetCampaigns(resolved.network.name, tuple(campaigns), detach)


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
    length = find_run_length(steps, inferences, epochs, samples, phase)
    resolved, setup = NetRequest.of(locals()).resolve()
    from joulecast.fleet.fleet_forecast import FleetEstimate, RunQuestion, forecast_fleet

    count = length.count_steps(setup.samples_per_step)
    question = RunQuestion(count, deadline_s, confidence, dict(charges or {}))
    with _open_fleet(store) as opened:

        def estimate(profile_key: str) -> Estimate:
            try:
                profile = opened.load_profile(profile_key)
            except MissingError as error:
                raise MissingError("no profile yet: run `joulecast fleet profile NET`") from error
            return estimate_net(profile, resolved.network, setup, estimator, level)

        found = forecast_fleet(opened.fleet.list_devices(), question, estimate)
    name = resolved.network.name
    return FleetForecast(FleetEstimate(name, setup, count, level, confidence, deadline_s, found))


estimate_fleet = select(
    forecast_on_fleet,
    lambda found: found.estimate,
    "estimate_fleet",
    """Forecast a run on every device of a fleet: joules, seconds, battery, and who can finish.""",
)


def run_fleet(
    file: str,
    store: str | None = None,
    *,
    workers: int | None = None,
    patience_s: float = 120.0,
    on_start: Callable[[Sequence[DeviceCheck]], None],
    on_event: Callable[[str, str], None],
) -> None:
    """Run the campaigns of a fleet file until the process is interrupted.

    Args:
        file: The fleet file.
        store: Path or URL of the store.
        workers: Processes that drive the agents; by default one per processor, but at most four.
        patience_s: How long a device may be away before it is parked.
        on_start: Called once with what the devices answered.
        on_event: Called with the name of a device and what happened to it.

    Raises:
        InputError: Another process runs the fleet of this store.
        DeviceAwayError: No device answers, and nothing is left to do.
    """
    from joulecast.fleet.fleet_campaigns import open_cluster, run_campaigns
    from joulecast.fleet.fleet_devices import check_devices, read_fleet
    from joulecast.store.campaigns import OPEN_STATES

    devices = read_fleet(file)
    place = choose_place(store)
    if place == IN_MEMORY:
        raise InputError("a fleet needs a store that its workers share: give a file or a URL")
    if "://" not in place:
        # Workers may have another current folder.
        place = str(Path(place).absolute())
    with open_store(place) as opened, opened.fleet.claim_fleet(_CLAIM_WAIT_S) as is_free:
        if not is_free:
            raise InputError(
                f"another process runs the fleet of the store {opened.place}: stop it, or choose "
                f"another store with {arg('store')} or JOULECAST_STORE"
            )
        opened.fleet.replace_devices({one.name: one.to_dict() for one in devices})
        checks = check_devices(devices)
        for one in checks:
            found = {"profile_key": one.profile_key, "description": one.description}
            opened.fleet.change_device(one.device.name, one.state, one.reason, **found)
        # Agents may still be busy with what a coordinator before this one asked for.
        has_work = opened.fleet.list_campaigns(states=OPEN_STATES)
        if not has_work and not any(one.is_ready for one in checks):
            first = checks[0]
            others = f" (and {len(checks) - 1} others)" if len(checks) > 1 else ""
            raise DeviceAwayError(
                f"no device of the fleet is ready: {first.device.name}{others}: {first.reason}"
            )
        workers = workers or min(_MOST_WORKERS, os.cpu_count() or 1)
        with open_cluster(devices, place, workers, patience_s) as submit:
            on_start(checks)
            run_campaigns(opened.fleet, devices, submit, on_event)


# ---------------------------------------------------------------------------------------------
# Results


@dataclass(frozen=True)
class FleetStatus(Reportable):
    """What the store knows about a fleet."""

    is_up: bool  # whether a coordinator is running
    devices: tuple[StoredDevice, ...]
    campaigns: tuple[StoredCampaign, ...]
    points: Mapping[str, int]  # observations of each device's profile, by the profile's key

    def to_dict(self) -> Json:
        devices = [
            {**asdict(one), "observations": self.points.get(one.profile_key, 0)}
            for one in self.devices
        ]
        campaigns = [asdict(one) for one in self.campaigns]
        return {"is_up": self.is_up, "devices": devices, "campaigns": campaigns}

    def report(self) -> Report:
        from joulecast.store.campaigns import FAILED, READY

        ready = sum(one.state == READY for one in self.devices)
        waiting = sum(one.is_open for one in self.campaigns)
        state = "up" if self.is_up else "not up (joulecast fleet up FILE)"
        lead = (
            f"The fleet is {state}: {ready} of {plural(len(self.devices), 'device')} ready, "
            f"{plural(waiting, 'open campaign')}."
        )
        devices = [
            (
                one.name,
                one.state,
                f"{self.points.get(one.profile_key, 0):,}",
                one.profile_key[:SHORT_KEY] or "-",
                format_time(one.changed_at_s),
                one.description or str(one.payload.get("address", "")),
            )
            for one in self.devices
        ]
        columns = ("device", "state", ">observations", "profile", "last change", "~found")
        queue: Block = Text("Nothing was requested yet.")
        if self.campaigns:
            rows = [(one.name, *list_campaign_cells(one, self.is_up)) for one in self.campaigns]
            title = "Campaigns, the earliest request first"
            queue = make_table(("network", *CAMPAIGN_COLUMNS), rows, title)
        faults = [(one.name, one.state, one.reason) for one in self.devices if one.state != READY]
        faults += [
            (f"{one.device}: {one.name}", one.state, one.reason)
            for one in self.campaigns
            if one.state == FAILED
        ]
        wrong: Block = Text("Nothing is wrong.")
        if faults:
            wrong = make_table(("where", "state", "~reason"), faults, "What is wrong")
        table = make_table(columns, devices, "Devices of the fleet")
        return Report("", (Text(lead, "lead"), table, queue, wrong), "measured", "fleet")


CAMPAIGN_COLUMNS = ("device", "state", ">points", ">±", ">time", "~why")


def list_campaign_cells(campaign: StoredCampaign, is_up: bool = True) -> tuple[str, ...]:
    """Return the cells of ``CAMPAIGN_COLUMNS``."""
    from joulecast.store.campaigns import RUNNING

    state = "stopped" if campaign.state == RUNNING and not is_up else campaign.state
    share = format_optional(campaign.uncertainty_share or None, format_share)
    elapsed = format_duration(campaign.elapsed_s) if campaign.elapsed_s else "-"
    return campaign.device, state, f"{campaign.points:,}", share, elapsed, campaign.reason


@dataclass(frozen=True)
class FleetCampaigns(Reportable):
    """Campaigns that were requested of a fleet; detached if nobody waited for them."""

    network: str
    campaigns: tuple[StoredCampaign, ...]
    is_detached: bool = False

    def finish_command(self) -> int:
        left = self._list_left()
        if left and not self.is_detached:
            raise MeasurementError(
                f"{len(left)} of {len(self.campaigns)} devices have no new profile; "
                f"{left[0].device}: {left[0].reason}"
            )
        return 0

    def to_dict(self) -> Json:
        return {"network": self.network, "devices": [asdict(one) for one in self.campaigns]}

    def report(self) -> Report:
        done = len(self.campaigns) - len(self._list_left())
        blocks = (
            make_table(CAMPAIGN_COLUMNS, map(list_campaign_cells, self.campaigns)),
            Text(f"{done} of {plural(len(self.campaigns), 'device')} profiled."),
            Text(f"Next: joulecast fleet estimate {self.network} --steps 1000", "command"),
        )
        return Report("", blocks, kind="fleet")

    def _list_left(self) -> list[StoredCampaign]:
        from joulecast.store.campaigns import DONE

        return [one for one in self.campaigns if one.state != DONE]


@dataclass(frozen=True)
class FleetForecast(Reportable):
    """What a run takes on every device of a fleet."""

    estimate: FleetEstimate

    def to_dict(self) -> Json:
        found, data = self.estimate, self.estimate.to_dict()
        for row, one in zip(data["devices"], found.devices, strict=True):
            latency_s = _find_latency(one, found.steps)
            row.update(describe_inference(found.setup, one.step_energy_j, latency_s))
        return data

    def report(self) -> Report:
        found = self.estimate
        verb_ = "Running" if is_inference(found.setup) else "Training"
        count = plural(found.steps, name_step(found.setup))
        limit = "" if found.deadline_s is None else f" within {format_duration(found.deadline_s)}"
        title = f"{verb_} {found.network} ({describe_setup(found.setup)}) for {count}{limit}"
        latency = [">latency"] if is_inference(found.setup) else []
        columns = (
            "device", ">energy", format_level(found.level), ">time", *latency, ">battery",
            "finishes", "~why not",
        )  # fmt: skip
        rows = [_make_forecast_row(one, found) for one in found.devices]
        able = [one for one in found.devices if one.can_finish]
        answer = (
            f"{len(able)} of {plural(len(found.devices), 'device')} can finish, with a probability "
            f"of at least {format_share(found.confidence)}."
        )
        return Report("", (make_table(columns, rows, title), Text(answer)), kind="fleet")


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


# ---------------------------------------------------------------------------------------------
# The store


def follow_request(
    key: str,
    store: str | None = None,
    on_change: Callable[[Sequence[StoredCampaign]], None] | None = None,
    waits: bool = True,
) -> tuple[StoredCampaign, ...]:
    """Wait until the campaigns of a request have ended or are parked; return them.

    ``on_change`` is called with the campaigns twice a second.

    Raises:
        MissingError: The fleet went down.
    """
    from joulecast.store.campaigns import AWAY, RUNNING, WAITING

    with _open_fleet(store) as opened:
        check_s = time.monotonic() + _CHECK_UP_S
        while True:
            campaigns = opened.fleet.list_campaigns(key)
            if on_change is not None:
                on_change(campaigns)
            if not waits or not any(one.state in (WAITING, RUNNING, AWAY) for one in campaigns):
                return campaigns
            if time.monotonic() > check_s:
                check_s = time.monotonic() + _CHECK_UP_S
                if not opened.fleet.is_up():
                    raise MissingError(f"the fleet went down; to resume, {_NOT_UP}")
            time.sleep(_POLL_S)


@contextmanager
def _open_fleet(store: str | None) -> Iterator[Store]:
    """Open a store that has a fleet."""
    with open_store(store, create=False) as opened:
        if not opened.exists or not opened.fleet.list_devices():
            raise MissingError(f"the store {opened.place} has no fleet: {_NOT_UP}")
        yield opened
