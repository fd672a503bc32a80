"""Looks: observations as `additive` sees them, pieces counted and numbers per step.

Isolated parts, variants and whole nets all become the same thing. What is known beforehand about a
look's error is said as relative variance: the spread of its rounds, for whole nets that layers do
not quite add up, and what reading a net gave to no layer. A run that was imported pays its source's
overhead once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from statistics import median

from joulecast.estimators.additive.pieces import (
    Count,
    count_stands,
    make_overhead,
    make_piece,
    merge_counts,
    split_pieces,
)
from joulecast.records import OWN_NET, Observation, StepTotals
from joulecast.variants import read_isolated_part

# How far a sum of known layers may be off: a net shares its caches, clocks and power limit. Of 141
# nets on an H200 the two-clock sum was off by 1.3 % (one deviation); a stated prior elsewhere.
OFF_SHARE = 0.012
# Spread of something that was seen once: nobody knows, so a usual one.
_USUAL_SHARE = 0.01
_AHEAD = 0.8
_MIXED_OFF_SHARE = 0.06
# A median of n readings spreads as 1.25 times their mean does.
_MEDIAN = 1.25


@dataclass(frozen=True)
class Look:
    """One observation, per step.

    Attributes:
        counts: Distinct pieces and how often the step runs each, copies included.
        mode: ``graph`` or ``eager``.
        energy_var: Relative variance known beforehand; likewise of the time.
        whole: More than one piece: a variant or a net.
        key: Of its trial; equal trials look at the same thing.
        imported: Somebody else measured it.
        unit: Which unit of the device ran it; empty where nobody knows.
    """

    counts: tuple[Count, ...]
    mode: str
    energy_j: float | None
    energy_var: float
    duration_s: float | None
    duration_var: float
    issue_s: float | None
    whole: bool
    key: str
    imported: bool = False
    unit: str = ""

    @property
    def is_ahead(self) -> bool:
        """Whether the host was done well before the device: the seconds are the device's."""
        return bool(self.issue_s and self.duration_s and self.issue_s < _AHEAD * self.duration_s)

    @property
    def launches(self) -> float:
        """Kernels of a step."""
        return sum(piece.launches * count for piece, count in self.counts)


def can_look(observation: Observation) -> bool:
    """Whether an observation shows a whole step of something, in joules or seconds."""
    trial = observation.trial
    seen = observation.energy_j or observation.duration_s
    return bool(trial.network.layers and trial.execution.stage == "step" and seen)


def read_looks(observations: Iterable[Observation]) -> list[Look]:
    """All looks. What was seen alone decides which blocks of whole nets are taken as one.

    A user's own module may do more than its layers: it renews its own estimate (runs.py), and no
    layer is blamed for the rest.
    """
    usable = [seen for seen in observations if can_look(seen) and seen.source != OWN_NET]
    known = _list_alone(usable)
    looks = []
    for seen in usable:
        merged = tuple(merge_counts(_count(seen, known), seen.trial.execution.copies).values())
        if merged:
            whole = read_isolated_part(seen.trial) is None
            looks.append(_make_look(seen, (*merged, *_list_overhead(seen)), whole))
    return looks


def take_near(observations: Sequence[Observation], labels: Set[str]) -> Sequence[Observation]:
    """Observations that show any kind of these, those that show no layer, and the last one.

    All of them where those hold no joules: what other kinds cost is the best guess then.
    """
    known = _list_alone(observations)
    last = max(observations, key=lambda seen: seen.taken_at_s, default=None)
    near = [
        seen
        for seen in observations
        if seen is last
        or not seen.trial.network.layers
        or any(piece.label in labels for piece, _ in _count(seen, known))
    ]
    told = any(seen.energy_j for seen in near if can_look(seen))
    return near if told else observations


def _list_alone(observations: Iterable[Observation]) -> set[str]:
    """Kinds that were seen alone: these blocks are taken as one."""
    parts = [(seen, read_isolated_part(seen.trial)) for seen in observations if can_look(seen)]
    return {make_piece(part, seen.trial.setup).label for seen, part in parts if part}


def _count(seen: Observation, known: Set[str]) -> Sequence[Count]:
    """Pieces of what was observed, of one copy."""
    part, setup = read_isolated_part(seen.trial), seen.trial.setup
    if part is not None:
        return [(make_piece(part, setup), 1.0)]
    return count_stands(split_pieces(seen.trial.network, setup, known))


def is_strangers_run(seen: Observation) -> bool:
    """Whether it is a whole run from a stranger's log: it holds more than its steps."""
    return seen.provenance == "imported" and seen.trial.execution.steps > 1


def _list_overhead(seen: Observation) -> tuple[Count, ...]:
    """One overhead for each source, paid once a run."""
    if not is_strangers_run(seen):
        return ()
    return ((make_overhead(seen.source), 1.0 / seen.trial.execution.steps),)


def find_unit(observations: Iterable[Observation]) -> str:
    """The unit of the device that is spoken of: the one that ran last."""
    last = max(observations, key=lambda seen: seen.taken_at_s, default=None)
    return last.device.unit if last is not None else ""


def find_idle(observations: Iterable[Observation]) -> float | None:
    """Watts of the waiting device; None where nobody looked."""
    powers = [
        seen.energy_j / seen.duration_s
        for seen in observations
        if not seen.trial.network.layers and seen.energy_j is not None and seen.duration_s
    ]
    return median(powers) if powers else None


def find_off_share(looks: Sequence[Look]) -> float:
    """How far sums may be off: more where a host runs ahead and no graph tells it from the device.

    Small looks then take the host's time and large nets the device's: neither adds to the other.
    """
    graphs = any(look.mode == "graph" for look in looks)
    ahead = any(look.is_ahead for look in looks)
    return OFF_SHARE if graphs or not ahead else _MIXED_OFF_SHARE


def _make_look(seen: Observation, counts: tuple[Count, ...], whole: bool) -> Look:
    steps = seen.trial.execution.steps
    off = (OFF_SHARE**2 if whole else 0.0) + _stray_var(seen.trial.network.totals)
    return Look(
        counts,
        seen.trial.execution.mode,
        seen.energy_j / steps if seen.energy_j else None,
        off + _spread_var(seen.energy_j, seen.energy_sd_j, seen.count),
        seen.duration_s / steps if seen.duration_s else None,
        off + _spread_var(seen.duration_s, seen.duration_sd_s, seen.count),
        seen.issue_s / steps if seen.issue_s else None,
        whole,
        seen.trial.key,
        seen.provenance == "imported",
        seen.device.unit,
    )


def _spread_var(value: float | None, sd: float | None, count: int) -> float:
    if not value or sd is None or count < 2:
        return _USUAL_SHARE**2
    return (_MEDIAN * sd / value / math.sqrt(count)) ** 2


def _stray_var(totals: StepTotals | None) -> float:
    """What reading gave to no layer makes a net cost more than its layers say."""
    if totals is None:
        return 0.0
    return max(totals.unattributed_flops_share, totals.unattributed_bytes_share) ** 2
