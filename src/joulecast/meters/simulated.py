"""Read the energy of a simulated device, with a counter that updates in steps or an exact one.

Energy is taken between the first and the last update of the counter inside the window.
"""

from __future__ import annotations

import math

from joulecast.meters.base import GuardedMeter, Reading
from joulecast.simulation import SimulatedDevice


class SimulatedMeter(GuardedMeter):
    """The energy counter of a simulated device; an exact one has an update interval of 0."""

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
        begun_s, ended_s = self._begun_s, self._simulated.now()
        if every_s := self.update_interval_s:
            first_s = math.ceil(begun_s / every_s) * every_s
            last_s = math.floor(ended_s / every_s) * every_s
        else:
            first_s, last_s = begun_s, ended_s
        if last_s <= first_s:
            fault = "too short: fewer than two updates of the counter"
            return Reading(0.0, ended_s - begun_s, (fault,))
        energy_j = self._simulated.energy_at(last_s) - self._simulated.energy_at(first_s)
        return Reading(energy_j, last_s - first_s, self._simulated.list_faults(begun_s, ended_s))
