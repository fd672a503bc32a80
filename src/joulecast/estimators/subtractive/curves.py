"""From observations of variants to curves: subtract, then fit, role by role.

    observation ──read──▶ Shown(subject, others, value, variance)
    output curves first ─▶ input curves: value - Ê_output ─▶ hidden: value - Ê_input - Ê_output

The variance of what is subtracted is added to the point's own. An observation whose others have no
curve yet waits until they have. The same works for joules and for seconds. Only nets that Joulecast
built itself are read: a user's own module may do work that its layers do not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.gp.regression import GaussianProcess
from joulecast.records import Execution, Observation, Setup
from joulecast.variants import ROLES, Part, curve_key, part_widths, read_variant

Widths = tuple[int, ...]
Spot = tuple[str, Widths]
FitGp = Callable[[tuple[Widths, ...], tuple[float, ...], tuple[float, ...]], GaussianProcess]

QUANTITIES = ("energy", "time")
# Spread of something that was seen once: nobody knows, so a usual one; and the least one of any.
_USUAL_SHARE = 0.02
_LEAST_SHARE = 0.005
# A median of n readings spreads as 1.25 times their mean does.
_MEDIAN = 1.25
# Work of a net that no layer accounts for, and that a curve would then be blamed for.
_STRAY_SHARE = 0.01


@dataclass(frozen=True)
class Shown:
    """An observation as a point of its subject's curve, before anything is subtracted."""

    subject: Part
    others: tuple[Part, ...]
    setup: Setup
    value: float
    variance: float

    @property
    def spots(self) -> tuple[Spot, ...]:
        """Where the others lie on their curves."""
        return tuple((curve_key(part, self.setup), part_widths(part)) for part in self.others)


@dataclass(frozen=True)
class Curve:
    """What one layer costs over its widths; ``part`` is one of its points."""

    part: Part
    setup: Setup
    gp: GaussianProcess

    @property
    def level(self) -> float:
        """Mean size of what was profiled: what uncertainty is a share of."""
        return float(np.abs(self.gp.values).mean())


def is_plain_step(how: Execution) -> bool:
    """Whether a whole eager step from the loss was run, as a user pays it."""
    return (how.stage, how.mode, how.copies, how.upstream) == ("step", "eager", 1, "loss")


def read_shown(observation: Observation, quantity: str) -> Shown | None:
    """What an observation shows of joules or seconds; None where it is no variant's."""
    value, variance = _per_step(observation, quantity)
    if value is None or not is_plain_step(observation.trial.execution):
        return None
    parts = read_parts(observation)
    if parts is None:
        return None
    return Shown(parts[0], parts[1:], observation.trial.setup, value, variance)


def read_parts(observation: Observation) -> tuple[Part, ...] | None:
    """The part that an observation shows, then those to subtract; None where it is no variant."""
    network, setup = observation.trial.network, observation.trial.setup
    if observation.source or setup.loss == "own" or not network.buildable:
        return None
    totals = network.totals
    if totals is not None:
        stray = max(
            totals.unattributed_flops_share,
            totals.unattributed_bytes_share,
            totals.unattributed_params_share,
        )
        if stray > _STRAY_SHARE:
            return None
    return read_variant(network)


def learn_curves(
    observations: Iterable[Observation], quantity: str, fit: FitGp
) -> dict[str, Curve]:
    """All curves that the observations show, by key."""
    groups: dict[str, list[Shown]] = {}
    for observation in observations:
        shown = read_shown(observation, quantity)
        if shown:
            groups.setdefault(curve_key(shown.subject, shown.setup), []).append(shown)
    curves: dict[str, Curve] = {}
    for role in ROLES:
        ready = {key: group for key, group in groups.items() if group[0].subject.role == role}
        costs = predict_spots(
            curves, (s for group in ready.values() for p in group for s in p.spots)
        )
        for key in sorted(ready):
            curve = _fit_curve(ready[key], costs, fit)
            if curve:
                curves[key] = curve
    return curves


def predict_spots(
    curves: Mapping[str, Curve], spots: Iterable[Spot]
) -> dict[Spot, tuple[float, float]]:
    """Mean and variance at single points of known curves."""
    by_key: dict[str, dict[Widths, None]] = {}
    for key, widths in spots:
        if key in curves:
            by_key.setdefault(key, {})[widths] = None
    costs = {}
    for key, wanted in by_key.items():
        gp = curves[key].gp
        means, cov = gp.predict(as_rows(wanted))
        variances = np.diag(cov) + gp.nugget_variance
        for widths, mean, variance in zip(wanted, means, variances, strict=True):
            costs[key, widths] = (float(mean), max(0.0, float(variance)))
    return costs


def as_rows(widths: Iterable[Sequence[int]]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Widths as rows of numbers; a curve without widths has one place, 1."""
    return np.array([list(point) or [1] for point in widths], dtype=float)


def _fit_curve(
    group: Sequence[Shown], costs: Mapping[Spot, tuple[float, float]], fit: FitGp
) -> Curve | None:
    points = []
    for shown in group:
        if all(spot in costs for spot in shown.spots):
            rest = [costs[spot] for spot in shown.spots]
            value = shown.value - sum(mean for mean, _ in rest)
            variance = shown.variance + sum(variance for _, variance in rest)
            points.append((part_widths(shown.subject), value, variance))
    if not points:
        return None
    # Sorted, so that the order in which points were seen leaves no trace in the fit.
    widths, values, variances = zip(*sorted(points), strict=True)
    return Curve(group[0].subject, group[0].setup, fit(widths, values, variances))


def _per_step(seen: Observation, quantity: str) -> tuple[float | None, float]:
    value, sd = seen.energy_j, seen.energy_sd_j
    if quantity == "time":
        value, sd = seen.duration_s, seen.duration_sd_s
    if value is None:
        return None, 0.0
    share = _USUAL_SHARE
    if sd is not None and seen.count > 1 and value > 0:
        share = max(_LEAST_SHARE, _MEDIAN * sd / value / seen.count**0.5)
    per_step = value / seen.trial.execution.steps
    return per_step, (share * per_step) ** 2
