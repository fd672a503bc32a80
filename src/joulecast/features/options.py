"""The option records of the verbs, and how keyword arguments become option records.

Every verb takes its options as flat keywords, like ``batch=128, rounds=5``. ``split_options`` sorts
them by the record that has a field of that name. The command line fills the same records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from joulecast.budgets import MAX_COUNT
from joulecast.errors import InputError
from joulecast.features.option_values import convert_options
from joulecast.features.parallel import ParallelOptions as ParallelOptions
from joulecast.uses.progress_report import ReportProgress
from joulecast.uses.prune_options import PruneOptions as PruneOptions
from joulecast.uses.search_options import SearchOptions as SearchOptions

DEFAULT_PROFILE_SECONDS = 600.0
DEFAULT_ATLAS_SECONDS = 1800.0
DEFAULT_PROBE_SECONDS = 20.0
# Below, jobs would be planned with less than their estimates.
LEAST_PLAN_CONFIDENCE = 0.5


def split_options(
    verb: Callable[..., Any], options: Mapping[str, Any], *records: type
) -> tuple[dict[str, Any], ...]:
    """Return the options that belong to each record, with the types of its fields.

    Args:
        verb: The function that was called; its own parameters are suggested as well.
        options: Keyword arguments as they were given.
        records: Dataclasses whose fields are options.

    Raises:
        InputError: No record has a field of that name, or a value has another type.
    """
    names = [{field.name for field in fields(record)} for record in records]
    for name in options:
        if not any(name in known for known in names):
            raise InputError(_describe_unknown(verb, name, set().union(*names)))
    return tuple(convert_options(record, options) for record in records)


@dataclass(frozen=True)
class NetOptions:
    """How a net is changed before it is trained.

    Attributes:
        checkpoint: Put its repeated blocks under activation checkpointing.
    """

    checkpoint: bool = False


@dataclass(frozen=True)
class MeasureOptions:
    """Where and how a net is measured.

    Attributes:
        on: ``cpu``, ``cuda:0``, ``mnn:cpu``, ``onnx:cpu``, ``simulated:SEED``, or the address of
            an agent: ``http://board:8377`` or ``ssh://user@board``.
        meter: Name of a meter, as ``joulecast detect`` lists them; ``nvml+rapl`` adds two up.
        rounds: Measured windows; the result is their median.
        device_name: Name to record for the device instead of the detected one.
        warmup: Steps before the windows; by default as many as it takes until their time settles.
        runs: Fewest steps of a window; by default as many as a tenth of a second takes. A meter
            that updates slowly may need more.
    """

    on: str = "cpu"
    meter: str = "auto"
    rounds: int = 3
    device_name: str = ""
    warmup: int = 0
    runs: int = 0

    def __post_init__(self) -> None:
        for name in ("warmup", "runs"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}: give 0 or more")


@dataclass(frozen=True)
class ProfileOptions:
    """What a profiling campaign measures, and when it stops.

    Attributes:
        points: Largest number of measurements.
        seconds: Longest duration; 600 s where neither limit is given.
        interval_share: Stop when the interval is within this share of the estimate.
        acquisition: How the next measurement is chosen: ``target`` lowers the variance of the net's
            totals most per second; ``energy`` and ``time`` follow the paper; ``missing`` measures
            only what was never seen of the net.
        estimator: Name of the estimator to measure for; ``auto`` for the one that suits the
            runtime.
        atlas: Measure layers of networks of all kinds instead of those of one net; 1800 s where no
            limit is given.
        anchors: Measure only large products, a copy and an empty launch of a GPU, which narrow the
            estimates that start from its data sheet.
        phase: With ``atlas``, what its networks do: ``train`` or ``inference``.
        retry_refused: With ``atlas``, try again what the device refused in earlier runs.
        from_: Devices, keys or files of profiles that the device starts from (``--from``); none to
            keep those that it started from before.
    """

    points: int | None = None
    seconds: float | None = None
    interval_share: float = 0.05
    acquisition: str = "target"
    estimator: str = "auto"
    atlas: bool = False
    retry_refused: bool = False
    from_: tuple[str, ...] = ()
    phase: str = "train"
    anchors: bool = False

    def __post_init__(self) -> None:
        if self.atlas and self.anchors:
            raise InputError("an atlas measures the anchors too: give atlas or anchors, not both")
        if self.points is not None and self.points < 1:
            raise InputError(f"points is {self.points}: give a whole number of at least 1")
        _check_duration("seconds", self.seconds)
        if not 0.0 < self.interval_share < math.inf:
            raise InputError(f"interval_share is {self.interval_share}: give a share like 0.05")

    @property
    def limit_s(self) -> float | None:
        """Longest duration in seconds; None where only ``points`` limits the campaign."""
        if self.points is None and self.seconds is None:
            return DEFAULT_ATLAS_SECONDS if self.atlas else DEFAULT_PROFILE_SECONDS
        return self.seconds


@dataclass(frozen=True)
class StoreOptions:
    """Where observations and profiles are stored.

    Attributes:
        store: Path or URL of the store, if not the usual one.
    """

    store: str | None = None


@dataclass(frozen=True)
class ProgressOptions:
    """Who is told about progress.

    Attributes:
        on_progress: Called with a ProgressReport after every trial.
    """

    on_progress: ReportProgress | None = None


@dataclass(frozen=True)
class EstimateOptions:
    """How an estimate is made.

    Attributes:
        estimator: Name of the estimator; ``auto`` for the one that suits the runtime.
        level: Probability of the credible interval.
        store: Path or URL of the store, if not the usual one.
    """

    estimator: str = "auto"
    level: float = 0.95
    store: str | None = None


@dataclass(frozen=True)
class WholeRunOptions:
    """What a run consists of besides its training steps, and how many runs there are.

    Attributes:
        eval_every: Steps between evaluations.
        eval_samples: Samples of each evaluation.
        loader: Gives batches: a ``DataLoader``, or the name of a function that makes one
            (``file.py:make_loader``). It is timed on this machine.
        runs: Number of equal runs: a sweep.
    """

    eval_every: int | None = None
    eval_samples: int | None = None
    loader: Any = None
    runs: int = 1

    def __post_init__(self) -> None:
        if (self.eval_every is None) != (self.eval_samples is None):
            raise InputError("eval_every and eval_samples belong together: give both")
        for name in ("eval_every", "eval_samples", "runs"):
            count = getattr(self, name)
            if count is not None and not 1 <= count <= MAX_COUNT:
                raise InputError(f"{name} is {count}: give a whole number from 1 to {MAX_COUNT:,}")

    @property
    def is_plain(self) -> bool:
        """Whether it is one run of training steps alone."""
        return self == WholeRunOptions()


@dataclass(frozen=True)
class ProbeOptions:
    """Whether the net's unseen layers are measured on the device first.

    Attributes:
        probe: Measure isolated layers before estimating; the device is ``on``.
        probe_seconds: Longest duration of a probe; by default as long as the verb allows.
    """

    probe: bool = False
    probe_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_duration("probe_seconds", self.probe_seconds)


@dataclass(frozen=True)
class PlanOptions:
    """How a plan is made.

    Attributes:
        confidence: Plan with energies and durations that each job stays below with this
            probability.
        time_limit_s: Longest duration of the search for a plan.
        now: Time at which the plan starts; the present by default.
        estimator: Name of the estimator; ``auto`` for the one that suits the runtime.
        store: Path or URL of the store, if not the usual one.
        trust: Run Python code that the file names as a net, wherever the file is.
    """

    confidence: float = 0.5
    time_limit_s: float = 60.0
    now: datetime | None = None
    estimator: str = "auto"
    store: str | None = None
    trust: bool = False

    def __post_init__(self) -> None:
        if not LEAST_PLAN_CONFIDENCE <= self.confidence < 1.0:
            raise InputError(
                f"confidence is {self.confidence}: give a probability from 0.5 to below 1"
            )
        _check_duration("time_limit_s", self.time_limit_s)


@dataclass(frozen=True)
class EvaluateOptions:
    """Which estimators are compared, on how many random nets.

    Attributes:
        estimators: Names; ``NAME-noprobe`` is NAME without probes; all but one where empty.
        nets: Held-out random nets of the family.
        seconds: Device time of each estimator's campaign.
        seed: Seed that draws the nets.
        offline: Evaluate stored observations without measuring.
    """

    estimators: tuple[str, ...] = ()
    nets: int = 20
    seconds: float = 60.0
    seed: int = 1
    offline: bool = False


def _check_duration(name: str, duration_s: float | None) -> None:
    if duration_s is not None and not 0.0 <= duration_s < math.inf:
        raise InputError(f"{name} is {duration_s}: give seconds, 0 or more")


def _describe_unknown(verb: Callable[..., Any], name: str, names: set[str]) -> str:
    own = signature(verb).parameters.values()
    known = sorted(names | {one.name for one in own if one.kind is not Parameter.VAR_KEYWORD})
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
    return f"joulecast.{verb.__name__} has no option {name!r}; {hint}"
