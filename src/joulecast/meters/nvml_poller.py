"""The process that watches a GPU's energy counter: ``python -m joulecast.meters.nvml_poller GPU``.

Polls about every millisecond and writes one line for each thing that happened:

    ready PERIOD              it has begun; the counter moves about every PERIOD seconds
    edge TIME JOULES LATE TEMPERATURE CLOCK THROTTLES PIDS
    beat TIME                 everything up to TIME has been told (at least every 20 ms)
    error WORDS               it cannot go on

A process of its own, because in the process that trains a poll waits for the interpreter's lock
while kernels are issued. It ends when its standard input closes or its parent is gone.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from typing import Protocol

from joulecast.errors import JoulecastError
from joulecast.meters.nvml_edges import Edge, format_edge
from joulecast.meters.nvml_gpu import Gpu, open_nvml

BEAT_S = 0.02
# Listing processes is slow; once in a while is enough, and right after an edge it disturbs nothing.
LIST_S = 0.5


class Source(Protocol):
    """Where joules come from.

    Attributes:
        poll_s: How long to sleep between two polls.
        period_s: How often its number moves.
        exact: Its number is that of the moment of the poll, not of an edge before it.
    """

    poll_s: float
    period_s: float
    exact: bool

    def energy_j(self) -> float:
        """Joules so far."""


class Counter:
    """The GPU's own counter, which moves every 100 ms."""

    poll_s = 0.001
    period_s = 0.1
    exact = False

    def __init__(self, gpu: Gpu) -> None:
        self.energy_j = gpu.energy_j


class Integral:
    """For GPUs without a counter: their power, added up over time."""

    poll_s = 0.02
    period_s = 0.02
    exact = True

    def __init__(self, power_w: Callable[[], float], now: Callable[[], float]) -> None:
        self._power_w = power_w
        self._now = now
        self._last = (now(), power_w())
        self._energy_j = 0.0

    def energy_j(self) -> float:
        """Joules since it was made, power being a straight line between two polls."""
        before_s, before_w = self._last
        self._last = after_s, after_w = self._now(), self._power_w()
        self._energy_j += (after_s - before_s) * (after_w + before_w) / 2
        return self._energy_j


def poll(
    source: Source,
    gpu: Gpu,
    write: Callable[[str], None],
    wait: Callable[[float], bool],
    now: Callable[[], float],
) -> None:
    """Tell every edge until ``wait`` says that nobody listens any more."""
    energy_j, polled_s = source.energy_j(), now()
    told_s, listed_s = polled_s, polled_s - LIST_S
    while not wait(source.poll_s):
        before_s, before_j = polled_s, energy_j
        energy_j, polled_s = source.energy_j(), now()
        if energy_j != before_j:
            late_s = 0.0 if source.exact else polled_s - before_s
            pids = None
            if polled_s - listed_s >= LIST_S:
                pids, listed_s = gpu.pids(), polled_s
            write(format_edge(_describe(gpu, Edge(polled_s, energy_j, late_s, pids=pids))))
            told_s = polled_s
        elif polled_s - told_s >= BEAT_S:
            write(f"beat {polled_s!r}")
            told_s = polled_s


def _describe(gpu: Gpu, edge: Edge) -> Edge:
    return edge._replace(
        temperature_c=gpu.temperature_c(),
        clock_hz=gpu.clock_hz(),
        throttle_bits=gpu.throttle_bits(),
    )


def make_source(gpu: Gpu, now: Callable[[], float]) -> Source:
    """The counter where there is one, else the sum of power."""
    return Counter(gpu) if gpu.has_counter else Integral(gpu.power_w, now)


def make_wait(stdin: int) -> Callable[[float], bool]:
    """A sleep that says whether the parent has closed our input or is gone."""
    parent = os.getppid()

    def wait(seconds: float) -> bool:
        readable: tuple[list[int], list[int], list[int]] = select.select([stdin], [], [], seconds)
        return bool(readable[0]) or os.getppid() != parent

    return wait


def run(gpu: str, write: Callable[[str], None], wait: Callable[[float], bool]) -> int:
    """Poll one GPU to the end; the exit status."""
    try:
        with open_nvml() as nvml:
            handle = Gpu(nvml, gpu)
            source = make_source(handle, time.monotonic)
            write(f"ready {source.period_s!r}")
            poll(source, handle, write, wait, time.monotonic)
    except JoulecastError as error:
        write(f"error {error}")
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """The program: its one argument is the GPU."""
    arguments = sys.argv[1:] if argv is None else argv

    def write(line: str) -> None:
        # Straight to the pipe: a buffer would hold lines back, and complain when nobody reads.
        os.write(1, (line + "\n").encode())

    try:
        return run(arguments[0] if arguments else "0", write, make_wait(0))
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
