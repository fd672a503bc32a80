"""Evaluate estimators on held-out random nets of a family, and report their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, parse_list, verb
from joulecast.features.measurers import MeasureOptions
from joulecast.features.nets import NetRequest, check_family
from joulecast.features.progress_report import ReportProgress
from joulecast.records import Device, Setup, name_step
from joulecast.records.codec import Record, omit_default
from joulecast.system.errors import ArgumentError, arg
from joulecast.views.plot_kinds import (
    ScoredEstimate,
    plot_energy_by_time,
    plot_error_by_time,
    plot_error_distribution,
    plot_estimates,
    plot_mape_bars,
    plot_profiling_time,
)
from joulecast.views.report import Block, Columns, Plot, Report, Reportable, Text, tabulate
from joulecast.views.words import (
    describe_provenance,
    describe_setup,
    format_percent,
    label_provenance,
    plural,
)

Interval = tuple[float, float]
_COLUMNS: Columns = (
    ("estimator", lambda one: one.estimator),
    (">MAPE", lambda one: format_percent(one.mape_percent)),
    (">bias", lambda one: "+" * (one.bias_percent > 0) + format_percent(one.bias_percent)),
    (">median", lambda one: format_percent(one.median_percent)),
    (">max", lambda one: format_percent(one.max_percent)),
    (">≤ 10 %", lambda one: f"{one.within10_percent:.0f} %"),
    (">coverage", lambda one: f"{one.coverage95_percent:.0f} %"),
    (">width", lambda one: format_percent(one.width95_percent)),
    (">time MAPE", lambda one: format_percent(one.time_mape_percent)),
    (">device", lambda one: f"{one.device_seconds:,.0f} s"),
)
_LEGEND = (
    "MAPE: mean absolute percentage error of the energy. coverage: nets inside their 95 % "
    "interval. width: its median width. time MAPE: error of the duration. device: measurement time."
)
_MAX_LEFT_OUT = 8

Family = Annotated[str, Argument("Name of a family, without widths.", metavar="FAMILY")]
Estimators = Annotated[
    tuple[str, ...],
    Argument(
        "Estimators; NAME-noprobe is NAME without probes.", metavar="NAME,NAME", default="all",
        parse=lambda text: parse_list(text) if text.strip(", ") else (),
    ),
]  # fmt: skip
Nets = Annotated[int, Argument("Held-out nets.", least=1)]
Seconds = Annotated[float, Argument("Device time of each estimator's campaign.", above=0.0)]
DrawingSeed = Annotated[int, Argument("Seed that draws the nets.")]
Offline = Annotated[bool, Argument("Evaluate what is stored without measuring.")]
StoredDevice = Annotated[
    Any, Argument("With --offline: the device whose profile is evaluated.", metavar="NAME")
]


@verb
def evaluate(
    family: Family,
    *,
    setup: Setup | None = None,
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    optimizer: given.Optimizer = None,
    precision: given.Precision = None,
    loss: given.Loss = None,
    accumulate: given.Accumulate = None,
    compiled: given.Compiled = None,
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
    estimators: Estimators = (),
    nets: Nets = 20,
    seconds: Seconds = 60.0,
    seed: DrawingSeed = 1,
    offline: Offline = False,
    device: StoredDevice = "",
    store: given.Store = None,
    on_progress: ReportProgress | None = None,
) -> Evaluation:
    """Measure random nets of FAMILY and compare the estimators' predictions with them.

    The nets are measured before and after the estimators' campaigns. Each estimator learns from its
    own measurements only, never from these nets. Everything is stored at once: after an
    interruption, the same command resumes; with --offline a finished evaluation is computed again
    without a device.
    """
    from joulecast.campaign import find_profile_key
    from joulecast.features.evaluation import (
        EvaluationPlan,
        evaluate_stored,
        list_estimators,
        load_measured,
        measure_and_evaluate,
    )
    from joulecast.features.measurers import lock_device, open_any_measurer
    from joulecast.features.profiles import load_observed_profile
    from joulecast.store import open_store

    if device and not offline:
        raise ArgumentError(f"{arg('device')} needs {arg('offline')}")
    check_family(family)
    setup = NetRequest.of({**locals(), "net": family}).resolve()[1]
    names = estimators or list_estimators(family, setup.phase)
    plan = EvaluationPlan(family, setup, input_shape, names, nets, seconds, seed)
    measuring = MeasureOptions(on or "cpu", meter or "auto", rounds, device_name, warmup, runs)
    if not offline:
        with (
            open_any_measurer(measuring) as measurer,
            lock_device(measuring.on),
            open_store(store) as opened,
        ):
            opened.check_writable()
            result = measure_and_evaluate(measurer, opened, plan, on_progress)
            opened.evaluations.save(result.name, find_profile_key(measurer), result.to_dict())
            return replace(result, store=str(opened.place))
    with open_store(store, create=False) as opened:
        if device:
            profile = load_observed_profile(device, store=store)
        else:
            # Never opened: it only identifies the device and the meter.
            profile = load_measured(open_any_measurer(measuring), opened)
        return replace(evaluate_stored(profile, plan), store=str(opened.place))


@dataclass(frozen=True)
class NetEstimate(Record):
    """An estimator's estimate of one step of a test network."""

    energy_j: float
    interval50_j: Interval
    interval95_j: Interval
    duration_s: float


@dataclass(frozen=True)
class NetResult(Record):
    """A test network with its measured step and the estimates of it."""

    name: str
    passes_j: tuple[float, ...]  # energy of a step in each pass that measured it
    measured_j: float  # mean of the passes, the reference for all errors
    measured_s: float
    flops: float
    estimates: Mapping[str, NetEstimate] = field(default_factory=dict)


@dataclass(frozen=True)
class EstimatorScore(Record):
    """The accuracy of an estimator over all test networks."""

    estimator: str
    nets: int
    mape_percent: float  # mean of |estimate - measured| / measured
    bias_percent: float  # mean of (estimate - measured) / measured
    median_percent: float  # of absolute errors, as are the next two
    p90_percent: float
    max_percent: float
    within5_percent: float  # share of networks with an absolute error of at most 5 %
    within10_percent: float
    coverage50_percent: float  # share of networks inside the 50 % interval
    coverage95_percent: float
    width50_percent: float  # median full width of that interval over the estimate
    width95_percent: float
    noise_percent: float | None  # median difference of passes, a bound of meaningful errors
    time_mape_percent: float
    device_seconds: float  # of the estimator's campaign and probes
    points: int  # observations that it was fitted to


@dataclass(frozen=True)
class Evaluation(Record, Reportable):
    """Estimators scored on the same test networks."""

    name: str  # prefix of the run tag of every observation it is based on
    family: str
    input_shape: tuple[int, ...]
    setup: Setup
    device: Device
    runtime: str
    meter: str
    covers: str
    provenance: str
    seed: int
    seconds: float  # device time that each campaign was allowed
    date: str  # of the last observation
    noise_percent: float | None  # median difference of two passes; None if no network has two
    scores: tuple[EstimatorScore, ...]  # the lowest MAPE first
    nets: tuple[NetResult, ...]
    left_out: tuple[str, ...] = ()  # networks, trials and estimators that failed, and why
    missing: tuple[str, ...] = ()  # what was not measured yet
    store: str = omit_default("", compare=False)  # where its observations are; empty if unknown

    def report(self) -> Report:
        best = min(self.scores, key=lambda one: one.mape_percent, default=None)
        blocks: list[Block] = [tabulate(_COLUMNS, self.scores)]
        if best is not None:
            error = format_percent(best.mape_percent)
            blocks[:0] = [Text(f"{best.estimator} has the smallest error: MAPE {error}.", "lead")]
        noise = "Each net was measured once, so the measurement noise is unknown."
        if self.noise_percent is not None:
            noise = (
                f"Two measurements of the same net differ by {format_percent(self.noise_percent)} "
                "(median): smaller errors are within the noise."
            )
        lines = [noise, *(f"Left out: {reason}" for reason in self.left_out[:_MAX_LEFT_OUT])]
        if len(self.left_out) > _MAX_LEFT_OUT:
            lines.append(f"Left out: {len(self.left_out) - _MAX_LEFT_OUT} more, see --json")
        lines += [f"Not measured yet: {what}" for what in self.missing]
        blocks += map(Text, lines)
        points = ", ".join(f"{one.estimator} {one.points:,}" for one in self.scores)
        mode = f" ({self.device.power_mode})" if self.device.power_mode else ""
        notes = [
            _LEGEND,
            f"Nets of input {'×'.join(map(str, self.input_shape))} drawn with seed {self.seed}; "
            f"each campaign had {self.seconds:g} s. Observations: {points}.",
            f"Provenance: {describe_provenance(self.provenance)}; {self.meter} covers "
            f"{self.covers}; {self.runtime} on {self.device.name}{mode}, {self.date}.",
        ]
        if self.store:
            notes.append(
                f"Stored in {self.store}; the same command with --offline evaluates it again."
            )
        blocks += [Text(note, "note") for note in notes]
        if any(net.estimates for net in self.nets):
            blocks += self._plot()
        title = (
            f"{plural(len(self.nets), 'held-out net')} of {self.family} on {self.device.name}"
            f"{label_provenance(self.provenance)}: {describe_setup(self.setup)}"
        )
        return Report(title, tuple(blocks), self.provenance, "evaluation")

    def _plot(self) -> list[Plot]:
        rows = [
            ScoredEstimate(net.name, name, net.measured_j, one.energy_j, one.interval95_j)
            for net in self.nets
            for name, one in net.estimates.items()
        ]
        provenance, step = self.provenance, name_step(self.setup)
        steps = [(net.name, net.measured_s, net.measured_j) for net in self.nets]
        mapes = {one.estimator: one.mape_percent for one in self.scores}
        durations_s = {one.estimator: one.device_seconds for one in self.scores}
        costs = {one.estimator: (one.device_seconds, one.mape_percent) for one in self.scores}
        return [
            plot_estimates(rows, provenance, step),
            plot_mape_bars(mapes, self.noise_percent, provenance),
            plot_error_distribution(rows, provenance),
            plot_error_by_time(costs, provenance),
            plot_profiling_time(durations_s, provenance),
            plot_energy_by_time({self.family: steps}, provenance, step),
        ]
