"""The meter of a simulated world: a counter that moves in steps, as NVML's does, or an exact one.

Takes a World, gives Readings marked simulated. It keeps every edge of the counter inside the
window, takes its joules between the first and the last one, and finds what is wrong with them from
the edges themselves, as the meter of a real instrument has to.
"""

from __future__ import annotations

import math

from joulecast.meters.base import Reading
from joulecast.meters.guarded import GuardedMeter
from joulecast.simulation import Disturbance, SimulatedDevice

_EXACT_POLLS = 10

Edges = list[tuple[float, float]]


class SimulatedMeter(GuardedMeter):
    """Reads a world's energy account through a counter."""

    name = "simulated"
    covers = "device"
    provenance = "simulated"

    def __init__(
        self, simulated: SimulatedDevice, period_s: float = 0.1, window_s: float = 1.0
    ) -> None:
        """Make the meter.

        Args:
            world: The device, whose clock it shares.
            period_s: How often the counter moves; 0 for an exact meter.
            window_s: The shortest window that is worth measuring.
        """
        self.period_s = period_s
        self.window_s = window_s
        self._simulated = simulated
        self._begun_s = 0.0

    def _start(self) -> None:
        self._begun_s = self._simulated.now()

    def _stop(self) -> Reading:
        begin_s, end_s = self._begun_s, self._simulated.now()
        edges = [(time_s, self._count(time_s)) for time_s in self._moments(begin_s, end_s)]
        seen = [edge for edge in edges if not self._befalls("gap", edge[0])]
        if len(seen) < 2:
            what = "too short: the counter moved less than twice" if len(edges) < 2 else "gap"
            return Reading(0.0, end_s - begin_s, (what,))
        energy_j, duration_s = seen[-1][1] - seen[0][1], seen[-1][0] - seen[0][0]
        missed = len(edges) - len(seen)
        faults = (*self._notice(begin_s, end_s), *_find_faults(seen, missed))
        return Reading(energy_j, duration_s, faults)

    def _moments(self, begin_s: float, end_s: float) -> list[float]:
        if end_s <= begin_s:
            return []
        if not self.period_s:
            share = (end_s - begin_s) / _EXACT_POLLS
            return [begin_s + share * i for i in range(_EXACT_POLLS)] + [end_s]
        first, last = math.ceil(begin_s / self.period_s), math.floor(end_s / self.period_s)
        return [i * self.period_s for i in range(first, last + 1)]

    def _count(self, time_s: float) -> float:
        """The counter as it stands at a moment, whatever has befallen it."""
        stuck = self._befalls("stuck", time_s)
        counted_j = self._simulated.energy_at(stuck.start_s if stuck else time_s)
        for event in self._simulated.disturbances:
            if event.what == "reset" and event.start_s <= time_s:
                counted_j = self._simulated.energy_at(time_s) - self._simulated.energy_at(event.start_s)
            if event.what == "negative" and event.start_s <= time_s:
                counted_j -= 2 * self._simulated.chip.limit_w * (self.window_s + event.start_s)
        return counted_j

    def _befalls(self, what: str, time_s: float) -> Disturbance | None:
        events = (d for d in self._simulated.disturbances if d.what == what)
        return next((d for d in events if d.start_s <= time_s < d.end_s), None)

    def _notice(self, begin_s: float, end_s: float) -> tuple[str, ...]:
        """What an instrument is told: throttling, and other programs on the device."""
        told = ("other load", "throttled")
        events = (d for d in self._simulated.disturbances if d.what in told and d.noticed)
        return tuple(d.what for d in events if d.start_s < end_s and d.end_s > begin_s)


def _find_faults(edges: Edges, missed: int) -> tuple[str, ...]:
    faults = []
    rises = [edges[i + 1][1] - edges[i][1] for i in range(len(edges) - 1)]
    if missed:
        faults.append(f"gap: {missed} of {missed + len(edges)} readings are missing")
    if min(rises) < 0:
        below = edges[-1][1] < 0
        faults.append("negative" if below else "reset: the counter went back")
    # An awake device always draws something, so a counter that stands still is not one that waits.
    if not all(rises):
        faults.append("stuck: the counter stood still")
    return tuple(faults)
