"""The records of a result: what was measured, what each estimator said, and how good that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joulecast.records import Device, Setup

Json = dict[str, Any]
Interval = tuple[float, float]


@dataclass(frozen=True)
class NetEstimate:
    """What an estimator says about a step of one net."""

    energy_j: float
    interval50_j: Interval
    interval95_j: Interval
    duration_s: float

    def to_dict(self) -> Json:
        ends = {"interval50_j": list(self.interval50_j), "interval95_j": list(self.interval95_j)}
        return {**self.__dict__, **ends}


@dataclass(frozen=True)
class NetResult:
    """A test net: what a step of it took, and what was said about it.

    Attributes:
        passes_j: Joules of each pass that saw it.
        measured_j: Their mean: what counts as true.
        measured_s: Seconds of a step.
        answers: By the estimator's name.
    """

    name: str
    passes_j: tuple[float, ...]
    measured_j: float
    measured_s: float
    flops: float
    answers: Mapping[str, NetEstimate] = field(default_factory=dict)

    def to_dict(self) -> Json:
        answers = {name: answer.to_dict() for name, answer in self.answers.items()}
        return {**self.__dict__, "passes_j": list(self.passes_j), "answers": answers}


@dataclass(frozen=True)
class EstimatorScore:
    """How good an estimator is, over all test nets.

    Attributes:
        mape_percent: Mean of |estimate - measured| / measured.
        bias_percent: Mean of the same with its sign.
        median_percent: Median of the errors without sign; likewise the 90th percentile, the max.
        within5_percent: Share of nets that it is off by no more than 5 %; likewise 10 %.
        coverage50_percent: Share of nets in the 50 % interval; likewise 95 %.
        width50_percent: Median full width of that interval as a share of the estimate.
        noise_percent: What two passes differ by: the floor under all errors.
        time_mape_percent: Mean error of the seconds.
        device_seconds: What its campaign and its probes took of the device.
        points: Observations that it learnt from.
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

    def to_dict(self) -> Json:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Evaluation:
    """Estimators judged by the same nets.

    Attributes:
        name: Begins the run tag of every observation it rests on.
        date: When the last of them was made.
        seconds: What each campaign was allowed to take.
        noise_percent: Median difference of two passes; None where no net has both.
        scores: The best first.
        left_out: Nets and estimators that could not be judged and trials that were refused, each
            with the reason.
        missing: What was not measured yet, in words.
    """

    name: str
    net: str
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

    def to_dict(self) -> Json:
        return {
            **self.__dict__,
            "input_shape": list(self.input_shape),
            "setup": self.setup.to_dict(),
            "device": self.device.to_dict(),
            "scores": [score.to_dict() for score in self.scores],
            "nets": [net.to_dict() for net in self.nets],
            "left_out": list(self.left_out),
            "missing": list(self.missing),
        }
