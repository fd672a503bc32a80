"""Values that travel together: how something is measured, profiled or estimated."""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulecast.system.errors import InputError

DEFAULT_PROFILE_SECONDS = 600.0
DEFAULT_ATLAS_SECONDS = 1800.0
DEFAULT_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class MeasureOptions:
    """Where and how a net is measured.

    Attributes:
        on: ``cpu``, ``cuda:0``, ``mnn:cpu``, ``onnx:cpu``, ``simulated:SEED``, or the address of
            an agent: ``http://board:8377`` or ``ssh://user@board``.
        warmup: Steps before the windows; by default as many as it takes until their time settles.
        runs: Fewest steps of a window; by default as many as a tenth of a second takes. A meter
            that updates slowly may need more.
    """

    on: str = "cpu"
    meter: str = "auto"  # name of a meter, as joulecast detect lists them; nvml+rapl adds two up
    rounds: int = 3  # measured windows; the result is their median
    device_name: str = ""  # name to record for the device instead of the detected one
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
        seconds: Longest duration; 600 s where neither limit is given, 1800 s for an atlas.
        acquisition: How the next measurement is chosen: ``target`` lowers the variance of the net's
            totals most per second; ``energy`` and ``time`` follow the paper; ``missing`` measures
            only what was never seen of the net.
        anchors: Measure only large products, a copy and an empty launch of a GPU, which narrow the
            estimates that start from its data sheet.
        from_: Devices, keys or files of profiles that the device starts from (``--from``); none to
            keep those that it started from before.
    """

    points: int | None = None  # largest number of measurements
    seconds: float | None = None
    interval_share: float = 0.05  # stop when the interval is within this share of the estimate
    acquisition: str = "target"
    estimator: str = "auto"
    atlas: bool = False  # measure layers of networks of all kinds instead of those of one net
    retry_refused: bool = False  # with atlas, try again what the device refused in earlier runs
    from_: tuple[str, ...] = ()
    phase: str = "train"  # with atlas, what its networks do: train or inference
    anchors: bool = False

    def __post_init__(self) -> None:
        if self.atlas and self.anchors:
            raise InputError("an atlas measures the anchors too: give atlas or anchors, not both")
        if self.points is not None and self.points < 1:
            raise InputError(f"points is {self.points}: give a whole number of at least 1")
        if self.seconds is not None and not 0.0 <= self.seconds < math.inf:
            raise InputError(f"seconds is {self.seconds}: give seconds, 0 or more")
        if not 0.0 < self.interval_share < math.inf:
            raise InputError(f"interval_share is {self.interval_share}: give a share like 0.05")

    @property
    def limit_s(self) -> float | None:
        """Longest duration in seconds; None where only ``points`` limits the campaign."""
        if self.points is None and self.seconds is None:
            return DEFAULT_ATLAS_SECONDS if self.atlas else DEFAULT_PROFILE_SECONDS
        return self.seconds


@dataclass(frozen=True)
class EstimateOptions:
    """How an estimate is made: ``auto`` is the estimator that suits the runtime."""

    estimator: str = "auto"
    level: float = 0.95
    store: str | None = None
