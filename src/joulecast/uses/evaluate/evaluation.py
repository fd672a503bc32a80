"""Records of an evaluation: measured networks, estimates of them, and scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulecast.records import Device, Setup
from joulecast.records.codec import Record

Interval = tuple[float, float]


@dataclass(frozen=True)
class NetEstimate(Record):
    """An estimator's estimate of one step of a test network."""

    energy_j: float
    interval50_j: Interval
    interval95_j: Interval
    duration_s: float


@dataclass(frozen=True)
class NetResult(Record):
    """A test network with its measured step and the estimates of it.

    Attributes:
        passes_j: Energy of a step in each pass that measured it.
        measured_j: Mean of the passes, the reference for all errors.
        measured_s: Duration of a step.
        estimates: Estimates by estimator name.
    """

    name: str
    passes_j: tuple[float, ...]
    measured_j: float
    measured_s: float
    flops: float
    estimates: Mapping[str, NetEstimate] = field(default_factory=dict)


@dataclass(frozen=True)
class EstimatorScore(Record):
    """The accuracy of an estimator over all test networks.

    Attributes:
        mape_percent: Mean of |estimate - measured| / measured.
        bias_percent: Mean of (estimate - measured) / measured.
        median_percent: Median absolute error; also the 90th percentile and the maximum.
        within5_percent: Share of networks with an absolute error of at most 5 %; also 10 %.
        coverage50_percent: Share of networks inside the 50 % interval; also 95 %.
        width50_percent: Median full width of that interval over the estimate; also 95 %.
        noise_percent: Median difference of two passes, a lower bound of meaningful errors.
        time_mape_percent: Mean absolute error of the duration.
        device_seconds: Device time of the estimator's campaign and probes.
        points: Observations that it was fitted to.
    """

    estimator: str
    nets: int
    mape_percent: float
    bias_percent: float
    median_percent: float
    p90_percent: float
    max_percent: float
    within5_percent: float
    within10_percent: float
    coverage50_percent: float
    coverage95_percent: float
    width50_percent: float
    width95_percent: float
    noise_percent: float | None
    time_mape_percent: float
    device_seconds: float
    points: int


@dataclass(frozen=True)
class Evaluation(Record):
    """Estimators scored on the same test networks.

    Attributes:
        name: Prefix of the run tag of every observation it is based on.
        family: Family that the networks were drawn from.
        seconds: Device time that each campaign was allowed.
        date: Date of the last observation.
        noise_percent: Median difference of two passes; None if no network has two.
        scores: Scores, the lowest MAPE first.
        left_out: Networks, trials and estimators that failed, with the reason.
        missing: What was not measured yet.
    """

    name: str
    family: str
    input_shape: tuple[int, ...]
    setup: Setup
    device: Device
    runtime: str
    meter: str
    covers: str
    provenance: str
    seed: int
    seconds: float
    date: str
    noise_percent: float | None
    scores: tuple[EstimatorScore, ...]
    nets: tuple[NetResult, ...]
    left_out: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
