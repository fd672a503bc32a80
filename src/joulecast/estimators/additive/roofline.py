"""The roofline of a device: what an empty launch, a FLOP and a byte cost at best.

Rates are the best that the device was seen to reach. Large matrix products, one for each precision,
a large copy and an empty launch, the anchors of a campaign, make sure that it was seen at its best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecast.estimators.additive.decompose import DecomposedObservation
from joulecast.estimators.additive.pieces import OVERHEAD
from joulecast.records import FLOAT_PRECISIONS
from joulecast.records.codec import Record

# If a kind of rate was never observed: an order of magnitude that the fit then changes.
_DEFAULT_LAUNCH_S, _DEFAULT_FLOP_S, _DEFAULT_BYTE_S = 5e-6, 1e-11, 1e-11
# Rates of FLOPs by precision over those of fp32, for precisions not observed. Matrix units run tf32
# up to eight and half precisions up to sixteen times as fast; many CPUs gain nothing.
_SPEEDUPS = {"fp32": 1.0, "tf32": 3.0, "bf16": 6.0, "fp16": 6.0}
# Log standard deviations of the prior of a cost that was observed, and of one that was not.
_SEEN_LOG_SD, _UNSEEN_LOG_SD = 0.3, 0.7
# From this many observations on, the single best one may be an error.
_MANY = 8
# Rates of bytes are read off the observations that move most: small ones may stay in caches.
_LARGE_SHARE = 0.25


@dataclass(frozen=True)
class Roofline(Record):
    """Costs of a device at best.

    Attributes:
        launch_s: Duration of an empty launch.
        flop_s: Seconds per FLOP, by precision.
        byte_s: Seconds per byte.
        log_sds: Uncertainty of the logarithms of these: launches, each precision, bytes.
    """

    launch_s: float
    flop_s: Mapping[str, float]
    byte_s: float
    log_sds: tuple[float, ...]

    @property
    def costs(self) -> tuple[float, ...]:
        """Seconds of a launch, of a FLOP in each precision, and of a byte."""
        return self.launch_s, *(self.flop_s[name] for name in FLOAT_PRECISIONS), self.byte_s


def find_roofline(timed: Sequence[DecomposedObservation]) -> Roofline:
    """Return the best rates that observed durations show."""
    rows = [_sum_work(one) for one in timed]
    launch_s = _best([one.duration_s / one.launches for one in rows if one.launches])
    largest = sorted(rows, key=lambda one: -one.size_bytes)[: math.ceil(_LARGE_SHARE * len(rows))]
    byte_s = _best([one.duration_s / one.size_bytes for one in largest if one.size_bytes])
    by_precision = {
        name: _best([one.duration_s / one.flops[name] for one in rows if one.flops.get(name)])
        for name in FLOAT_PRECISIONS
    }
    costs = (launch_s, *by_precision.values(), byte_s)
    return Roofline(
        launch_s or _DEFAULT_LAUNCH_S,
        {name: value or _guess_flop_s(name, by_precision) for name, value in by_precision.items()},
        byte_s or _DEFAULT_BYTE_S,
        tuple(_SEEN_LOG_SD if cost else _UNSEEN_LOG_SD for cost in costs),
    )


def _guess_flop_s(precision: str, by_precision: Mapping[str, float]) -> float:
    """Return the seconds per FLOP that those of the most similar observed precision suggest."""
    seen = [name for name, flop_s in by_precision.items() if flop_s]
    if not seen:
        return _DEFAULT_FLOP_S / _SPEEDUPS[precision]
    ratios = {name: _SPEEDUPS[name] / _SPEEDUPS[precision] for name in seen}
    nearest = min(seen, key=lambda name: (abs(math.log(ratios[name])), -ratios[name]))
    return by_precision[nearest] * ratios[nearest]


@dataclass(frozen=True)
class _Row:
    """Work and duration of an observation; launches that its duration tells about."""

    duration_s: float
    flops: Mapping[str, float]
    size_bytes: float
    launches: float


def _sum_work(observation: DecomposedObservation) -> _Row:
    flops: dict[str, float] = {}
    size_bytes = launches = 0.0
    for piece, count in observation.counts.items():
        leaves = piece.leaves_alone if observation.is_isolated else piece.own_leaves
        for leaf, repeats in leaves:
            if leaf.operator_class == OVERHEAD:
                continue
            times = count * repeats
            precision = leaf.rate_precision
            flops[precision] = flops.get(precision, 0.0) + times * leaf.padded_flops
            size_bytes += times * leaf.size_bytes
            # A recurrent layer fuses most of the launches that are counted for it.
            launches += times * leaf.launches * (leaf.operator_class != "recurrent")
    # What a run pays once would pass for the duration of its launches.
    if any(piece.operator_class == OVERHEAD for piece in observation.counts):
        launches = 0.0
    return _Row(observation.duration_s or 0.0, flops, size_bytes, launches)


def _best(costs: Sequence[float]) -> float:
    """Return the least cost, or the second of many; 0 if there is none."""
    ordered = sorted(costs)
    if not ordered:
        return 0.0
    return ordered[1] if len(ordered) >= _MANY else ordered[0]
