"""Read the energy of a simulated device, with a counter that updates in steps or an exact one.

Energy is taken between the first and the last update of the counter inside the window. Faults are
found from the updates themselves, as with a real instrument.
"""

from __future__ import annotations

import math

from joulecast.meters.base import GuardedMeter, Reading
from joulecast.simulation import Disturbance, SimulatedDevice

_EXACT_POLLS = 10

Edges = list[tuple[float, float]]


class SimulatedMeter(GuardedMeter):
    """The energy counter of a simulated device."""

    name = "simulated"
    covers = "device"
    provenance = "simulated"

    def __init__(
        self, simulated: SimulatedDevice, update_interval_s: float = 0.1, window_s: float = 1.0
    ) -> None:
        self.update_interval_s = update_interval_s
        self.window_s = window_s
        self._simulated = simulated
        self._begun_s = 0.0

    def _start(self) -> None:
        self._begun_s = self._simulated.now()

    def _stop(self) -> Reading:
        begin_s, end_s = self._begun_s, self._simulated.now()
        edges = [
            (time_s, self._read_counter(time_s)) for time_s in self._list_updates(begin_s, end_s)
        ]
        seen = [edge for edge in edges if not self._find_event("gap", edge[0])]
        if len(seen) < 2:
            what = "too short: fewer than two updates of the counter" if len(edges) < 2 else "gap"
            return Reading(0.0, end_s - begin_s, (what,))
        energy_j, duration_s = seen[-1][1] - seen[0][1], seen[-1][0] - seen[0][0]
        missed = len(edges) - len(seen)
        faults = (*self._find_noticed(begin_s, end_s), *_find_faults(seen, missed))
        return Reading(energy_j, duration_s, faults)

    def _list_updates(self, begin_s: float, end_s: float) -> list[float]:
        if end_s <= begin_s:
            return []
        if not self.update_interval_s:
            share = (end_s - begin_s) / _EXACT_POLLS
            return [begin_s + share * i for i in range(_EXACT_POLLS)] + [end_s]
        first, last = (
            math.ceil(begin_s / self.update_interval_s),
            math.floor(end_s / self.update_interval_s),
        )
        return [i * self.update_interval_s for i in range(first, last + 1)]

    def _read_counter(self, time_s: float) -> float:
        """Return the counter at a moment, with all disturbances."""
        stuck = self._find_event("stuck", time_s)
        counted_j = self._simulated.energy_at(stuck.start_s if stuck else time_s)
        for event in self._simulated.disturbances:
            if event.what == "reset" and event.start_s <= time_s:
                counted_j = self._simulated.energy_at(time_s) - self._simulated.energy_at(
                    event.start_s
                )
            if event.what == "negative" and event.start_s <= time_s:
                counted_j -= 2 * self._simulated.chip.limit_w * (self.window_s + event.start_s)
        return counted_j

    def _find_event(self, what: str, time_s: float) -> Disturbance | None:
        events = (d for d in self._simulated.disturbances if d.what == what)
        return next((d for d in events if d.start_s <= time_s < d.end_s), None)

    def _find_noticed(self, begin_s: float, end_s: float) -> tuple[str, ...]:
        """Return what an instrument reports: throttling, and other programs on the device."""
        reported = ("other load", "throttled")
        events = (d for d in self._simulated.disturbances if d.what in reported and d.noticed)
        return tuple(d.what for d in events if d.start_s < end_s and d.end_s > begin_s)


def _find_faults(edges: Edges, missed: int) -> tuple[str, ...]:
    faults = []
    rises = [edges[i + 1][1] - edges[i][1] for i in range(len(edges) - 1)]
    if missed:
        faults.append(f"gap: {missed} of {missed + len(edges)} readings are missing")
    if min(rises) < 0:
        is_negative = edges[-1][1] < 0
        faults.append("negative" if is_negative else "reset: the counter decreased")
    # A device always draws power, so a constant counter is stuck, not idle.
    if not all(rises):
        faults.append("stuck: the counter did not change")
    return tuple(faults)
