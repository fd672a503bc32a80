"""Records of a comparison of devices and setups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulecast.records import Estimate, Setup, describe_inference

Json = dict[str, Any]


@dataclass(frozen=True)
class ComparisonRow:
    """A device and a setup, with the energy and duration per sample.

    Attributes:
        requested_device: Name by which the device was requested.
        setup: How the network is trained or run.
        device: Device name in the profile; empty without a profile.
        covers: What the device's meter covers.
        estimate: Estimate of one step; None if it could not be made.
        reason: Why the row is not ranked; empty if it is.
        gpus: Number of GPUs that train together.
        rank: Rank among rows whose meters cover the same, 1 for the least energy per sample.
        is_on_front: Whether no row of the same coverage has both less energy and less time.
        probability_below_next: Probability that it uses less energy than the next row.
    """

    requested_device: str
    setup: Setup
    device: str = ""
    covers: str = ""
    estimate: Estimate | None = None
    reason: str = ""
    rank: int | None = None
    is_on_front: bool = False
    probability_below_next: float | None = None
    gpus: int = 1

    @property
    def energy_j(self) -> float:
        """Energy per sample."""
        return 0.0 if self.estimate is None else self._per_sample(self.estimate.energy_j)

    @property
    def duration_s(self) -> float:
        """Duration per sample."""
        return 0.0 if self.estimate is None else self._per_sample(self.estimate.duration_s)

    @property
    def interval_j(self) -> tuple[float, float]:
        """Interval of the energy per sample."""
        low_j, high_j = (0.0, 0.0) if self.estimate is None else self.estimate.interval_j
        return self._per_sample(low_j), self._per_sample(high_j)

    @property
    def duration_interval_s(self) -> tuple[float, float] | None:
        """Interval of the duration per sample; None if the estimator gives none."""
        ends = None if self.estimate is None else self.estimate.duration_interval_s
        return None if ends is None else (self._per_sample(ends[0]), self._per_sample(ends[1]))

    def to_dict(self) -> Json:
        """Return the row as JSON values."""
        data: Json = {
            "device": self.device or self.requested_device,
            "setup": self.setup.to_dict(),
            "gpus": self.gpus,
            "covers": self.covers,
            "rank": self.rank,
            "on_front": self.is_on_front,
            "probability_below_next": self.probability_below_next,
            "reason_not_ranked": self.reason,
        }
        if self.estimate is None:
            return data
        interval_s = self.duration_interval_s
        return {
            **data,
            "energy_j_per_sample": self.energy_j,
            "interval_j_per_sample": list(self.interval_j),
            "duration_s_per_sample": self.duration_s,
            "duration_interval_s_per_sample": None if interval_s is None else list(interval_s),
            "step": {
                "energy_j": self.estimate.energy_j,
                "interval_j": list(self.estimate.interval_j),
                "duration_s": self.estimate.duration_s,
            },
            **describe_inference(self.setup, self.estimate.energy_j, self.estimate.duration_s),
            "peak_memory_bytes": self.estimate.peak_memory_bytes,
            "device_memory_bytes": self.estimate.device_memory_bytes,
            "fits_memory": self.estimate.fits_memory,
            "runtime": self.estimate.runtime,
            "notes": list(self.estimate.notes),
            "unseen_share": self.estimate.unseen_share,
            "provenance": self.estimate.provenance,
            **self._describe_gpus(self.estimate),
        }

    @property
    def samples_per_step(self) -> int:
        """Samples of all batches of a step, on all GPUs."""
        return self.gpus * self.setup.samples_per_step

    @staticmethod
    def _describe_gpus(estimate: Estimate) -> Json:
        part = estimate.data_parallel
        return {} if part is None else {"data_parallel": part.to_dict()}

    def _per_sample(self, per_step: float) -> float:
        return per_step / self.samples_per_step


@dataclass(frozen=True)
class Comparison:
    """Devices and setups, ranked separately for each meter coverage.

    Attributes:
        rows: Ranked rows by coverage and rank, then the rows that are not ranked.
    """

    net: str
    estimator: str
    level: float
    rows: tuple[ComparisonRow, ...]

    @property
    def groups(self) -> dict[str, tuple[ComparisonRow, ...]]:
        """Ranked rows by meter coverage."""
        found: dict[str, list[ComparisonRow]] = {}
        for row in self.rows:
            if row.rank is not None:
                found.setdefault(row.covers, []).append(row)
        return {covers: tuple(rows) for covers, rows in found.items()}

    @property
    def unranked(self) -> tuple[ComparisonRow, ...]:
        """Rows that could not be ranked."""
        return tuple(row for row in self.rows if row.rank is None)

    def to_dict(self) -> Json:
        """Return the comparison as JSON values."""
        return {
            "net": self.net,
            "estimator": self.estimator,
            "level": self.level,
            "comparable": len(self.groups) <= 1,
            "rows": [row.to_dict() for row in self.rows],
        }
