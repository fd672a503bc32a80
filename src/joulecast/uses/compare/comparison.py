"""The records of a comparison: combinations of a device and a setup, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulecast.records import Estimate, Setup

Json = dict[str, Any]


@dataclass(frozen=True)
class ComparisonRow:
    """One combination of a device and a setup.

    Attributes:
        asked: What the device was called; ``device`` is its profile's own name.
        estimate: Of a step; None where nobody could answer.
        why: Why it is not ranked; empty where it is.
        rank: Place among those whose meters cover the same, 1 the fewest joules a sample.
        on_front: None of those is better in joules and in seconds.
        chance_next: Probability that it is really cheaper than the next one.
    """

    asked: str
    setup: Setup
    device: str = ""
    covers: str = ""
    estimate: Estimate | None = None
    why: str = ""
    rank: int | None = None
    on_front: bool = False
    chance_next: float | None = None

    @property
    def energy_j(self) -> float:
        """Joules of a sample."""
        return self._share(0.0 if self.estimate is None else self.estimate.energy_j)

    @property
    def duration_s(self) -> float:
        """Seconds of a sample."""
        return self._share(0.0 if self.estimate is None else self.estimate.duration_s)

    @property
    def interval_j(self) -> tuple[float, float]:
        """Where these joules are."""
        ends = (0.0, 0.0) if self.estimate is None else self.estimate.interval_j
        return self._share(ends[0]), self._share(ends[1])

    @property
    def duration_interval_s(self) -> tuple[float, float] | None:
        """Where these seconds are; None where nobody knows."""
        ends = None if self.estimate is None else self.estimate.duration_interval_s
        return None if ends is None else (self._share(ends[0]), self._share(ends[1]))

    def _share(self, of_a_step: float) -> float:
        return of_a_step / self.setup.batch

    def to_dict(self) -> Json:
        data: Json = {
            "device": self.device or self.asked,
            "setup": self.setup.to_dict(),
            "covers": self.covers,
            "rank": self.rank,
            "on_front": self.on_front,
            "chance_cheaper_than_next": self.chance_next,
            "why_not_ranked": self.why,
        }
        if self.estimate is None:
            return data
        seconds = self.duration_interval_s
        return {
            **data,
            "energy_j_per_sample": self.energy_j,
            "interval_j_per_sample": list(self.interval_j),
            "duration_s_per_sample": self.duration_s,
            "duration_interval_s_per_sample": None if seconds is None else list(seconds),
            "step": {
                "energy_j": self.estimate.energy_j,
                "interval_j": list(self.estimate.interval_j),
                "duration_s": self.estimate.duration_s,
            },
            "peak_memory_bytes": self.estimate.peak_memory_bytes,
            "unseen_share": self.estimate.unseen_share,
            "basis": self.estimate.basis,
        }


@dataclass(frozen=True)
class Comparison:
    """Combinations, ranked within what their meters cover.

    Attributes:
        rows: The ranked ones by coverage and rank, then those that are not ranked.
    """

    net: str
    estimator: str
    level: float
    rows: tuple[ComparisonRow, ...]

    @property
    def groups(self) -> dict[str, tuple[ComparisonRow, ...]]:
        """What meters cover → ranked rows."""
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
        return {
            "net": self.net,
            "estimator": self.estimator,
            "level": self.level,
            "comparable": len(self.groups) <= 1,
            "rows": [row.to_dict() for row in self.rows],
        }
