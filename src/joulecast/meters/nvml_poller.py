"""Poll a GPU's energy counter in a process: ``python -m joulecast.meters.nvml_poller GPU``.

It polls about every millisecond and writes one line per event:

    ready INTERVAL SOURCE     it has started; SOURCE (counter or sensor) updates about every
                              INTERVAL seconds
    edge TIME JOULES LATE TEMPERATURE CLOCK THROTTLES SENSOR LIMIT BUSY PIDS
    beat TIME                 everything up to TIME has been reported (at least every 20 ms)
    error MESSAGE             it cannot continue

``pollers`` starts it and reads its lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from joulecast.meters.nvml import Edge, Gpu, format_edge, open_nvml
from joulecast.meters.pollers import make_wait, write_line
from joulecast.system.errors import JoulecastError

BEAT_S = 0.02
# Listing processes is slow, so do it rarely, and right after an edge, when no edge can be missed.
LIST_S = 0.5


class EnergyCounter:
    """The GPU's energy counter, which updates every 100 ms.

    Attributes:
        is_exact: The number belongs to the moment of the poll, not to an update before it.
    """

    name = "counter"
    poll_s = 0.001
    update_interval_s = 0.1
    is_exact = False

    def __init__(self, gpu: Gpu) -> None:
        self.energy_j = gpu.energy_j


class PowerIntegral:
    """The integral of power, for GPUs without an energy counter."""

    name = "sensor"
    poll_s = 0.02
    update_interval_s = 0.02
    is_exact = True

    def __init__(self, power_w: Callable[[], float], now: Callable[[], float]) -> None:
        self._power_w = power_w
        self._now = now
        self._last = (now(), power_w())
        self._energy_j = 0.0

    def energy_j(self) -> float:
        """Return the energy since it was made, with power linear between two polls."""
        before_s, before_w = self._last
        self._last = after_s, after_w = self._now(), self._power_w()
        self._energy_j += (after_s - before_s) * (after_w + before_w) / 2
        return self._energy_j


EnergySource = EnergyCounter | PowerIntegral


def poll(
    source: EnergySource,
    gpu: Gpu,
    write: Callable[[str], None],
    wait: Callable[[float], bool],
    now: Callable[[], float],
) -> None:
    """Write every edge until ``wait`` returns that the parent has gone."""
    energy_j, polled_s = source.energy_j(), now()
    reported_s, listed_s = polled_s, polled_s - LIST_S
    while not wait(source.poll_s):
        before_s, before_j = polled_s, energy_j
        energy_j, polled_s = source.energy_j(), now()
        if energy_j != before_j:
            late_s = 0.0 if source.is_exact else polled_s - before_s
            pids = None
            if polled_s - listed_s >= LIST_S:
                pids, listed_s = gpu.pids(), polled_s
            write(format_edge(_describe(gpu, Edge(polled_s, energy_j, late_s, pids=pids))))
            reported_s = polled_s
        elif polled_s - reported_s >= BEAT_S:
            write(f"beat {polled_s!r}")
            reported_s = polled_s


def _describe(gpu: Gpu, edge: Edge) -> Edge:
    return edge._replace(
        temperature_c=gpu.temperature_c(),
        clock_hz=gpu.clock_hz(),
        throttle_bits=gpu.throttle_bits(),
        sensor_w=gpu.sensor_power_w(),
        limit_w=gpu.limit_w(),
        busy_share=gpu.busy_share(),
    )


def make_source(gpu: Gpu, now: Callable[[], float]) -> EnergySource:
    """Return the energy counter if the GPU has one, else the integral of its power."""
    return EnergyCounter(gpu) if gpu.has_counter else PowerIntegral(gpu.power_w, now)


def run(gpu: str, write: Callable[[str], None], wait: Callable[[float], bool]) -> int:
    """Poll one GPU until the parent has gone; return the exit status."""
    try:
        with open_nvml() as nvml:
            handle = Gpu(nvml, gpu)
            source = make_source(handle, time.monotonic)
            write(f"ready {source.update_interval_s!r} {source.name}")
            poll(source, handle, write, wait, time.monotonic)
    except JoulecastError as error:
        write(f"error {error}")
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the program; its one argument is the GPU."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return run(arguments[0] if arguments else "0", write_line, make_wait(0))
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
