"""Edges of a GPU's energy counter: their lines on the poller's pipe, and what a window says.

        counter            ┌───┐
                       ┌───┘   └ …        the counter moves every 100 ms and stands still between;
                   ┌───┘                  only the moment of an edge is known well
        ────────┬──┴───┴───┴──┬──────
                t0  first…last t1         power = (last - first) over their own distance

So energy = power x (t1 - t0): reading the counter at t0 and t1 would be off by up to a period at
each end. An edge that the poller saw late (it was not scheduled) may have happened at any time
since the poll before; it is kept, but no power is taken from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from statistics import median
from typing import NamedTuple

from joulecast.meters.base import Reading
from joulecast.meters.trace import pairs

MIN_EDGES = 3
# The moment of an edge must be known this well to take a power from it.
SHARP_S = 0.015
# A counter that rests for this many periods has missed something.
GAP_PERIODS = 5.0

# Lowered clocks that spoil a measurement. The software power cap is not among them: a large GPU
# at its power limit works as it is meant to.
THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class Edge(NamedTuple):
    """A move of the counter.

    Attributes:
        time_s: When it was seen, by time.monotonic, which all processes share.
        late_s: How long before that it may have happened.
        pids: Processes on the GPU; None where they were not listed this time.
    """

    time_s: float
    energy_j: float
    late_s: float = 0.0
    temperature_c: float = 0.0
    clock_hz: float = 0.0
    throttle_bits: int = 0
    pids: tuple[int, ...] | None = None

    @property
    def moment_s(self) -> float:
        """When it most likely happened: halfway between the two polls around it."""
        return self.time_s - self.late_s / 2


def format_edge(edge: Edge) -> str:
    """One line; ``parse_edge`` gives the same edge back."""
    pids = "-" if edge.pids is None else ",".join(map(str, edge.pids)) or "none"
    return " ".join(["edge", *map(repr, edge[:-1]), pids])


def parse_edge(line: str) -> Edge:
    """The edge of a line.

    Raises:
        ValueError: It is no such line.
    """
    word, time_s, energy_j, late_s, temperature_c, clock_hz, bits, pids = line.split()
    if word != "edge":
        raise ValueError(f"not an edge: {line!r}")
    listed = () if pids == "none" else tuple(map(int, pids.split(","))) if pids != "-" else None
    return Edge(
        float(time_s),
        float(energy_j),
        float(late_s),
        float(temperature_c),
        float(clock_hz),
        int(bits),
        listed,
    )


def read_edges(edges: Sequence[Edge], start_s: float, end_s: float, period_s: float) -> Reading:
    """The energy of a window from the edges strictly inside it, with what is wrong with them."""
    inside = [e for e in edges if start_s < e.time_s - e.late_s and e.time_s < end_s]
    sharp = [e for e in inside if e.late_s <= SHARP_S]
    duration_s = end_s - start_s
    found = chain(
        _find_resets(inside),
        _find_rests(inside, sharp, (start_s, end_s), period_s),
        _find_throttles(inside),
    )
    return Reading(_mean_power_w(sharp) * duration_s, duration_s, tuple(found))


def _mean_power_w(edges: Sequence[Edge]) -> float:
    """Between the first and the last edge; 0 where they say nothing."""
    if len(edges) < 2:
        return 0.0
    rise_j = edges[-1].energy_j - edges[0].energy_j
    return max(rise_j, 0.0) / (edges[-1].moment_s - edges[0].moment_s)


def _find_resets(edges: Sequence[Edge]) -> list[str]:
    falls = [(a, b) for a, b in pairs(edges) if b.energy_j < a.energy_j]
    return [f"reset: the counter fell from {a.energy_j} to {b.energy_j} J" for a, b in falls[:1]]


def _find_rests(
    inside: Sequence[Edge], sharp: Sequence[Edge], window_s: tuple[float, float], period_s: float
) -> list[str]:
    """Where the counter stood still for too long, or moved too seldom to tell its power."""
    times = [edge.time_s for edge in inside]
    steps = [after - before for before, after in pairs(times)]
    limit_s = GAP_PERIODS * max([period_s, *([median(steps)] if steps else [])])
    first_s, last_s = (times[0], times[-1]) if times else (window_s[1], window_s[0])
    rest_s = max(first_s - window_s[0], window_s[1] - last_s)
    faults = []
    if rest_s > limit_s:
        faults.append(f"stuck: the counter stood still for {rest_s:.3g} s")
    if max(steps, default=0.0) > limit_s:
        faults.append(f"gap: {max(steps):.3g} s between two moves of the counter")
    if len(sharp) < MIN_EDGES and not faults:
        seen = f"{len(sharp)} clear moves of the counter in {window_s[1] - window_s[0]:.3g} s"
        faults.append(f"too short: {seen}")
    return faults


def _find_throttles(edges: Sequence[Edge]) -> list[str]:
    bits = 0
    for edge in edges:
        bits |= edge.throttle_bits
    return [f"throttled: {name}" for bit, name in THROTTLES.items() if bits & bit]
