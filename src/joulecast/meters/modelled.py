"""Model energy on machines without a sensor: CPU time of this process times a stated power.

Readings have the provenance ``modelled``: they rank loads by the CPU time they take, and their
joules are only as good as the stated watts. CPU time includes all threads, and children after they
have ended. Threads that spin while they wait count as busy.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

from joulecast.meters.base import GuardedMeter, MeterInfo, MeterRequest, Reading
from joulecast.system.errors import InputError
from joulecast.system.units import parse_power

# A round number for one busy core of a desktop or server processor, with its share of the rest.
CORE_W = 10.0


def cpu_time_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class ModelledMeter(GuardedMeter):
    """A model of energy: CPU time x a stated power."""

    name = "modelled"
    covers = "cpu"
    provenance = "modelled"
    window_s = 0.2

    def __init__(
        self,
        power_w: float = CORE_W,  # of one busy core
        idle_w: float = 0.0,  # constant, whether a core is busy or not
        cpu_time: Callable[[], float] = cpu_time_s,
    ) -> None:
        if not (0 < power_w < float("inf") and 0 <= idle_w < float("inf")):
            raise InputError(
                f"modelled power is {power_w} W per busy core and {idle_w} W idle: "
                "give watts above 0"
            )
        self.power_w = power_w
        self.idle_w = idle_w
        # Energies modelled with different watts must not share a profile.
        always = f" and {idle_w:g} W always" if idle_w else ""
        self.covers = f"cpu at {power_w:g} W a core{always}"
        self._cpu_time = cpu_time
        self._since = (0.0, 0.0)

    def _start(self) -> None:
        self._since = (self.clock.now(), self._cpu_time())

    def _stop(self) -> Reading:
        busy_s = self._cpu_time() - self._since[1]
        duration_s = self.clock.now() - self._since[0]
        energy_j = max(busy_s, 0.0) * self.power_w + duration_s * self.idle_w
        return Reading(energy_j, duration_s)


def make_modelled(request: MeterRequest) -> ModelledMeter:
    """Return the meter of ``modelled`` or ``modelled:8W`` (watts of one busy core)."""
    text = request.argument
    if not text:
        return ModelledMeter()
    is_number = text.replace(".", "", 1).isdigit()
    return ModelledMeter(parse_power(f"{text}W" if is_number else text))


def detect_modelled() -> tuple[MeterInfo, ...]:
    """Return the one modelled meter, which is always available."""
    meter = ModelledMeter()
    meter.covers = ModelledMeter.covers
    meter.update_interval_s = time.get_clock_info("process_time").resolution
    reason = (
        f"CPU time of this process x {CORE_W:g} W per busy core: modelled, not measured "
        "(modelled:8W uses other watts)"
    )
    return (meter.to_info(reason, idle_power_w=0.0),)
