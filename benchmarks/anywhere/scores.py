"""Score estimates against the truth: errors, coverage and calibration of intervals, by group.

error      estimate / truth - 1
z          ln(truth / estimate) / s, with s the standard deviation behind the log-normal interval
width      (upper - lower limit) / estimate
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from joulecast.gp.lognormal import interval_log_sd

Json = dict[str, Any]

FILLED_POWER_W = 350.0
"""A network fills the card if its training loop draws at least this power."""

SHIPPED, PROBED = "shipped", "probed"


@dataclass(frozen=True)
class NetworkScore:
    """One estimate of a network against its truth; only shares, no percent."""

    network: str
    method: str
    error_share: float
    is_inside: bool
    z: float | None
    width_share: float
    duration_error_share: float | None = None


@dataclass(frozen=True)
class GroupScore:
    """The scores of one method on a group of networks."""

    method: str
    group: str
    count: int
    failed: int
    mape_percent: float
    median_percent: float
    worst_percent: float
    bias_percent: float
    within_percent: float
    rms_z: float | None
    median_width_percent: float
    duration_mape_percent: float | None

    def to_dict(self) -> Json:
        """Return JSON."""
        return asdict(self)


def list_methods(results: dict[str, Json]) -> list[str]:
    """Return the methods that estimated at least one network, ours first."""
    rivals = [name for found in results.values() for name in found.get("rivals", {})]
    return list(dict.fromkeys((SHIPPED, PROBED, *rivals)))


def find_estimate(found: Json, method: str) -> Json | None:
    """Return the estimate of a method for a network; None if it was not tried."""
    own = found if method in (SHIPPED, PROBED) else found.get("rivals", {})
    estimate: Json | None = own.get(method)
    return estimate


def score_network(name: str, found: Json, method: str) -> NetworkScore | None:
    """Score one estimate; None if it was not tried, or failed."""
    estimate, truth = find_estimate(found, method), found["truth"]
    if estimate is None or "error" in estimate:
        return None
    energy_j, true_j = estimate["energy_j"], truth["energy_j"]
    low, high = estimate["interval_j"]
    log_sd = find_log_sd(energy_j, (low, high), estimate.get("level", 0.95))
    duration_s = estimate.get("duration_s")
    return NetworkScore(
        network=name,
        method=method,
        error_share=energy_j / true_j - 1.0,
        is_inside=low <= true_j <= high,
        z=math.log(true_j / energy_j) / log_sd if log_sd and energy_j > 0 else None,
        width_share=(high - low) / energy_j if energy_j > 0 else math.inf,
        duration_error_share=duration_s / truth["duration_s"] - 1.0 if duration_s else None,
    )


def find_log_sd(energy_j: float, interval_j: tuple[float, float], level: float) -> float | None:
    """Return the standard deviation of the log energy; None if the interval has no width."""
    if energy_j <= 0 or interval_j[1] <= energy_j:
        return None
    return interval_log_sd(energy_j, interval_j, level)


def make_groups(results: dict[str, Json]) -> dict[str, list[str]]:
    """Return the names of the networks in each group; groups without networks are left out."""
    rules: dict[str, Callable[[Json], bool]] = {
        "all": lambda found: True,
        "fills the card": lambda found: found["truth"]["power_w"] >= FILLED_POWER_W,
        "does not fill it": lambda found: found["truth"]["power_w"] < FILLED_POWER_W,
        "bf16": lambda found: found["setup"]["precision"] == "bf16",
        "tf32 and fp32": lambda found: found["setup"]["precision"] != "bf16",
    }
    groups = {
        group: [name for name, found in results.items() if rule(found)]
        for group, rule in rules.items()
    }
    for name, found in results.items():
        groups.setdefault(found["about"]["domain"], []).append(name)
    return {group: names for group, names in groups.items() if names}


def score_group(
    method: str, group: str, names: Iterable[str], results: dict[str, Json]
) -> GroupScore | None:
    """Score a method on a group; None if it estimated none of its networks."""
    tried = [name for name in names if find_estimate(results[name], method) is not None]
    scores = [one for name in tried if (one := score_network(name, results[name], method))]
    if not scores:
        return None
    errors = [100 * one.error_share for one in scores]
    sizes = [abs(error) for error in errors]
    zs = [one.z for one in scores if one.z is not None]
    durations = [one.duration_error_share for one in scores if one.duration_error_share is not None]
    return GroupScore(
        method=method,
        group=group,
        count=len(scores),
        failed=len(tried) - len(scores),
        mape_percent=mean(sizes),
        median_percent=median(sizes),
        worst_percent=max(errors, key=abs),
        bias_percent=mean(errors),
        within_percent=100 * mean(one.is_inside for one in scores),
        rms_z=math.sqrt(mean(z * z for z in zs)) if zs else None,
        median_width_percent=100 * median(one.width_share for one in scores),
        duration_mape_percent=100 * mean(map(abs, durations)) if durations else None,
    )
