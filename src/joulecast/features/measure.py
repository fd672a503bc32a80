"""Measure one training step or one inference of a net, or any command."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.measurers import (
    MeasureOptions,
    OwnNetRuntime,
    lock_device,
    open_any_measurer,
    runs_own_net,
)
from joulecast.features.nets import NetRequest, ResolvedNet
from joulecast.records import (
    OWN_NET,
    Json,
    Observation,
    Setup,
    Trial,
    compute_power,
    describe_inference,
    name_step,
)
from joulecast.records.network import describe_waits
from joulecast.records.trial import INFERENCES
from joulecast.system.errors import ArgumentError, InputError, StoreError, arg
from joulecast.system.redaction import redact_url
from joulecast.system.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_power,
    format_wh,
)
from joulecast.views.report import Block, Report, Reportable, Text, make_table
from joulecast.views.words import (
    begin_sentence,
    describe_provenance,
    describe_setup,
    format_optional,
    is_inference,
    label_provenance,
    plural,
)

if TYPE_CHECKING:
    from joulecast.measurer import TrialMeasurer
    from joulecast.meters import Meter, Reading
    from joulecast.records.runtime import Runtime

# Share of a step that issuing it takes where the host limits it.
_HOST_SHARE = 0.95
# Faults of the surroundings, after which the energy is still valid.
_TOLERATED_FAULTS = ("other load", "throttled", "limit changed")

MeasuredNet = Annotated[
    Any, Argument("A net, as for `joulecast estimate`.", is_positional=True, harm="may run code")
]
Command = Annotated[
    tuple[str, ...], Argument("A command to run once.", is_after_dashes=True, harm="runs code")
]
NoSave = Annotated[bool, Argument("Do not store the observation of NET.")]


@verb
def measure(
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
    on: given.On = None,
    meter: given.Meter = None,
    rounds: given.Rounds = 3,
    device_name: given.RecordedName = "",
    warmup: given.Warmup = 0,
    runs: given.WindowRuns = 0,
    store: given.Store = None,
) -> Observation:
    """Train a net under a meter and return what one step took.

    With ``phase="inference"`` the net is run, not trained: a step is one forward pass. A module is
    left as it was. The observation is stored if ``store`` is given.
    """
    request = NetRequest.of(locals())
    options = MeasureOptions(on or "cpu", meter or "auto", rounds, device_name, warmup, runs)
    found = _measure_request(request, options, store, saves=store is not None)
    found.finish_command()
    return found.observation


@verb
def measure_any(
    net: MeasuredNet = None,
    *,
    command: Command = (),
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
    on: given.On = None,
    meter: given.Meter = None,
    rounds: given.Rounds = 3,
    device_name: given.RecordedName = "",
    warmup: given.Warmup = 0,
    runs: given.WindowRuns = 0,
    store: given.Store = None,
    no_save: NoSave = False,
    stdout: int | None = None,
) -> StepMeasurement | CommandCost:
    """Train NET, or run any COMMAND, under a meter and print its energy and time.

    NET is warmed up and measured in several windows: energy and time of a step with their standard
    deviation. With --inference NET is run, not trained: energy and latency of an inference. A
    COMMAND is run once; its exit code becomes that of this program. With --json its
    output goes to stderr.
    """
    if bool(command) == (net is not None):
        raise ArgumentError(f"give either {arg('net')}, or -- and a command")
    options = MeasureOptions(on or "cpu", meter or "auto", rounds, device_name, warmup, runs)
    if command:
        from joulecast.measurer.local_devices import find_meter

        return measure_command(command, find_meter(options.meter, options.on), stdout)
    request = NetRequest.of(locals())
    return _measure_request(request, options, store, saves=not no_save)


def _measure_request(
    request: NetRequest, options: MeasureOptions, store: str | None, *, saves: bool
) -> StepMeasurement:
    if saves:
        from joulecast.store import check_place

        check_place(store)
    with lock_device(options.on), open_any_measurer(options, allows_later=True) as measurer:
        # The net is read while the device is idle.
        measured = measure_opened(measurer, request.resolve, options.on)
    try:
        place = save_observation(measured.observation, store) if saves else ""
        return replace(measured, place=place)
    except StoreError as error:
        # What was measured is still shown.
        return replace(measured, failure=error)


@dataclass(frozen=True)
class StepMeasurement(Reportable):
    """A measured step or inference of a net, and the store that keeps it."""

    net: ResolvedNet
    setup: Setup
    observation: Observation
    disturbances: Mapping[str, int] = field(default_factory=dict)  # rejected windows, by fault
    place: str = ""
    failure: StoreError | None = None  # why it could not be stored

    def finish_command(self) -> int:
        if self.failure is not None:
            raise self.failure
        return 0

    def to_dict(self) -> Json:
        one, setup = self.observation, self.observation.trial.setup
        return {
            "net": one.trial.network.name,
            "setup": setup.to_dict(),
            **{key: value for key, value in one.to_dict().items() if key != "trial"},
            "power_w": compute_power(one.energy_j, one.duration_s),
            **describe_inference(setup, one.energy_j, one.duration_s),
            "store": self.place or None,
        }

    def report(self) -> Report:
        one = self.observation
        setup, energy_j = one.trial.setup, one.energy_j
        power = format_optional(compute_power(energy_j, one.duration_s), format_power)
        energies = [format_optional(each, format_energy) for each in (energy_j, one.energy_sd_j)]
        # A processor issues to itself. A meter of a board does not say which of them ran it.
        is_gpu, is_processor = "gpu" in one.covers, one.covers.startswith("cpu")
        issue_s = one.issue_s if is_gpu or not is_processor else None
        durations = (one.duration_s, one.duration_sd_s)
        time_, spread = (format_optional(each, format_duration) for each in durations)
        rows = [
            ("energy", *energies),
            ("latency" if is_inference(setup) else "time", time_, spread),
            ("power", power, ""),
            ("peak memory", format_optional(one.peak_memory_bytes, format_bytes), ""),
        ]
        if issue_s is not None:
            rows.insert(2, ("issue time", format_duration(issue_s), ""))
        if is_inference(setup) and energy_j is not None:
            rows.append((f"{INFERENCES:,} inferences", format_wh(INFERENCES * energy_j), ""))
        step = begin_sentence(setup).split(" ", 1)[1]
        heading = f"one {step}{label_provenance(one.provenance)}"
        blocks: list[Block] = [make_table((heading, ">median", ">std. dev."), rows)]
        lines = [
            f"{plural(one.count, 'window')} with the meter {one.meter}, which covers "
            f"{one.covers}: {describe_provenance(one.provenance)}."
        ]
        if one.measured_steps:
            lines.append(
                f"{plural(one.measured_steps, name_step(setup))} measured in all, after "
                f"{one.warmup_steps:,} to warm up."
            )
        if is_gpu and issue_s and one.trial.network.wait_count:
            lines.append(f"Issue time contains waiting: {describe_waits(one.trial.network)}")
        elif is_gpu and issue_s and one.duration_s and issue_s >= _HOST_SHARE * one.duration_s:
            lines.append(f"The host limits this {name_step(setup)}: issuing it takes as long.")
        if self.disturbances:
            faults = (f"{name} ({count} times)" for name, count in self.disturbances.items())
            lines.append(f"Disturbed by {', '.join(faults)}: such windows were measured again.")
        if one.unchecked:
            lines.append(f"Not checked by this meter: {', '.join(one.unchecked)}.")
        lines += [f"Stored in {self.place}."] if self.place else []
        blocks += map(Text, lines)
        verb_ = "Running" if is_inference(setup) else "Training"
        title = f"{verb_} {one.trial.network.name} on {one.device.name}: {describe_setup(setup)}"
        return Report(title, tuple(blocks), one.provenance, "measurement")


@dataclass(frozen=True)
class CommandCost(Reportable):
    """Energy and duration of a command; no energy if the meter could not tell."""

    command: tuple[str, ...]
    energy_j: float | None
    duration_s: float
    exit_code: int
    faults: tuple[str, ...]
    meter: str
    covers: str
    provenance: str

    def finish_command(self) -> int:
        """Return the exit code: the command's own, and 1 if its energy is not known."""
        return self.exit_code or int(self.energy_j is None)

    @property
    def power_w(self) -> float | None:
        return compute_power(self.energy_j, self.duration_s)

    def to_dict(self) -> Json:
        command, faults = list(map(redact_url, self.command)), list(self.faults)
        return {**asdict(self), "command": command, "faults": faults, "power_w": self.power_w}

    def report(self) -> Report:
        energy = format_optional(self.energy_j, format_energy) + label_provenance(self.provenance)
        power = format_optional(self.power_w, format_power)
        title = (
            f"\n{energy} in {format_duration(self.duration_s)}, {power} on average; "
            f"exit code {self.exit_code}"
        )
        source = f"meter {self.meter} covers {self.covers}: {describe_provenance(self.provenance)}"
        faults = (Text(f"meter {self.meter}: {one}", "warning") for one in self.faults)
        return Report(title, (*faults, Text(source, "note")), self.provenance, "command")


def measure_opened(
    measurer: TrialMeasurer, read: Callable[[], tuple[ResolvedNet, Setup]], on: str
) -> StepMeasurement:
    """Measure the user's own module or file where there is one, else the network built anew."""
    net, setup = measurer.watch_idle(read)
    loaded = net.load() if net.load and runs_own_net(on, net.form) else None
    if loaded is not None:
        # A device elsewhere runs no net of this machine.
        runtime = OwnNetRuntime(cast("Runtime", measurer.runtime), loaded)
        measurer = replace(measurer, runtime=runtime)
        if loaded.loss is not None and setup.phase == "train":
            setup = replace(setup, loss="own")
    observation = measurer.measure(Trial(net.network, setup))
    if measurer.meter.is_recorder:
        # Imports what fits estimators, which other meters do not need.
        from joulecast.campaign.trial_log import drop_energy

        observation = drop_energy(observation)
    if loaded is not None:
        observation = replace(observation, source=OWN_NET)
    return StepMeasurement(net, setup, observation, dict(measurer.disturbances))


def save_observation(observation: Observation, store: str | None = None) -> str:
    """Add an observation to the store and return where the store is."""
    from joulecast.store import open_store

    with open_store(store) as opened:
        opened.add_observation(observation)
        return str(opened.place)


def measure_command(command: Sequence[str], meter: Meter, stdout: Any = None) -> CommandCost:
    """Run a command under a meter, which this function opens."""
    with meter:
        started_s = time.monotonic()
        meter.begin()
        try:
            exit_code = subprocess.call(command, stdout=stdout)
        except OSError as error:
            problem = f"cannot run {command[0]} ({error.strerror or error})"
            raise InputError(f"{problem}: give a program that exists") from error
        # Taken before the meter ends, because a meter may wait for its last reading.
        duration_s = max(time.monotonic() - started_s, 1e-9)
        reading = meter.end()
    # Shells report a signal, a negative code here, as 128 plus its number.
    code = exit_code if exit_code >= 0 else 128 - exit_code
    energy_j, source = scale_energy(reading, duration_s), (meter.name, meter.covers)
    return CommandCost(
        tuple(command), energy_j, duration_s, code, reading.faults, *source, meter.provenance
    )


def scale_energy(reading: Reading, duration_s: float) -> float | None:
    """Return the energy of ``duration_s`` seconds from the part of them that the meter covered.

    It is None where the reading is not valid; other load on the device does not make it so.
    """
    serious = [fault for fault in reading.faults if fault.split(":")[0] not in _TOLERATED_FAULTS]
    if serious or reading.duration_s <= 0:
        return None
    return reading.energy_j / reading.duration_s * duration_s
