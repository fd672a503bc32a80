"""Compute the energy of a window from edges (updates) of a GPU's energy counter.

        counter            ┌───┐
                       ┌───┘   └ …        the counter updates every 100 ms and is constant between;
                   ┌───┘                  only the time of an edge is known well
        ────────┬──┴───┴───┴──┬──────
                t0  first…last t1         power = (last - first) / (time between them)

Energy is power x (t1 - t0): reading the counter at t0 and t1 would be wrong by up to one update
interval at each end. An edge that the poller saw late, because it was not scheduled, may have
happened at any time since the poll before; power is not computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from statistics import median
from typing import NamedTuple

from joulecast.meters.base import Reading
from joulecast.meters.nvml_checks import find_implausible, list_unchecked

MIN_EDGES = 3
# The time of an edge must be known this well to compute power from it.
PRECISE_S = 0.015
# A counter without an update for this many intervals is stuck, or updates were missed.
GAP_PERIODS = 5.0

# Reasons for lowered clocks that make a measurement invalid. The software power cap is not among
# them: a large GPU at its power limit works as designed.
THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class Edge(NamedTuple):
    """An update of the counter.

    Attributes:
        time_s: When the poller saw it, by time.monotonic, which all processes share.
        late_s: How long before that it may have happened.
        sensor_w: What the power sensor shows, which may average over the last second.
        limit_w: The power limit that is in force.
        busy_share: In which share of up to a second any program ran kernels.
        pids: Processes on the GPU; None if they were not listed this time.
    """

    time_s: float
    energy_j: float
    late_s: float = 0.0
    temperature_c: float = 0.0
    clock_hz: float = 0.0
    throttle_bits: int = 0
    sensor_w: float | None = None
    limit_w: float | None = None
    busy_share: float | None = None
    pids: tuple[int, ...] | None = None

    @property
    def estimated_s(self) -> float:
        """Estimated time of the update: halfway between the two polls around it."""
        return self.time_s - self.late_s / 2


def format_edge(edge: Edge) -> str:
    """Return an edge as one line of text, for ``parse_edge``."""
    pids = "-" if edge.pids is None else ",".join(map(str, edge.pids)) or "none"
    values = ("-" if value is None else repr(value) for value in edge[:-1])
    return " ".join(["edge", *values, pids])


def parse_edge(line: str) -> Edge:
    """Return the edge that ``format_edge`` wrote.

    Raises:
        ValueError: The line is not an edge.
    """
    word, time_s, energy_j, late_s, temperature_c, clock_hz, bits, *optional, pids = line.split()
    if word != "edge":
        raise ValueError(f"not an edge: {line!r}")
    sensor_w, limit_w, busy_share = map(_parse_optional, optional)
    listed = () if pids == "none" else tuple(map(int, pids.split(","))) if pids != "-" else None
    return Edge(
        float(time_s),
        float(energy_j),
        float(late_s),
        float(temperature_c),
        float(clock_hz),
        int(bits),
        sensor_w,
        limit_w,
        busy_share,
        listed,
    )


def _parse_optional(text: str) -> float | None:
    return None if text == "-" else float(text)


def read_edges(
    edges: Sequence[Edge], start_s: float, end_s: float, update_interval_s: float
) -> Reading:
    """Return the energy of a window from the edges strictly inside it, with their faults."""
    inside = [e for e in edges if start_s < e.time_s - e.late_s and e.time_s < end_s]
    precise = [e for e in inside if e.late_s <= PRECISE_S]
    duration_s = end_s - start_s
    power_w = _mean_power_w(precise)
    found = chain(
        _find_resets(inside),
        _find_gaps(inside, precise, (start_s, end_s), update_interval_s),
        find_implausible(inside, start_s, power_w),
        _find_throttles(inside),
    )
    return Reading(
        power_w * duration_s,
        duration_s,
        tuple(found),
        min((e.busy_share for e in inside if e.busy_share is not None), default=None),
        list_unchecked(inside),
    )


def _mean_power_w(edges: Sequence[Edge]) -> float:
    """Return the mean power between the first and the last edge; 0 for fewer than two."""
    if len(edges) < 2:
        return 0.0
    rise_j = edges[-1].energy_j - edges[0].energy_j
    return max(rise_j, 0.0) / (edges[-1].estimated_s - edges[0].estimated_s)


def _find_resets(edges: Sequence[Edge]) -> list[str]:
    falls = [(a, b) for a, b in pairwise(edges) if b.energy_j < a.energy_j]
    return [f"reset: the counter fell from {a.energy_j} to {b.energy_j} J" for a, b in falls[:1]]


def _find_gaps(
    inside: Sequence[Edge],
    precise: Sequence[Edge],
    window_s: tuple[float, float],
    update_interval_s: float,
) -> list[str]:
    """Report a counter that did not update for too long, or too few updates."""
    times = [edge.time_s for edge in inside]
    steps = [after - before for before, after in pairwise(times)]
    limit_s = GAP_PERIODS * max([update_interval_s, *([median(steps)] if steps else [])])
    first_s, last_s = (times[0], times[-1]) if times else (window_s[1], window_s[0])
    rest_s = max(first_s - window_s[0], window_s[1] - last_s)
    faults = []
    if rest_s > limit_s:
        faults.append(f"stuck: the counter did not change for {rest_s:.3g} s")
    if max(steps, default=0.0) > limit_s:
        faults.append(f"gap: {max(steps):.3g} s between two updates of the counter")
    if len(precise) < MIN_EDGES and not faults:
        duration_s = window_s[1] - window_s[0]
        faults.append(f"too short: {len(precise)} clear updates in {duration_s:.3g} s")
    return faults


def _find_throttles(edges: Sequence[Edge]) -> list[str]:
    bits = 0
    for edge in edges:
        bits |= edge.throttle_bits
    return [f"throttled: {name}" for bit, name in THROTTLES.items() if bits & bit]
