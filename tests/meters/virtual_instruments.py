"""Virtual clocks and instruments for tests of meters: no real time, no randomness."""

import queue

import pytest

from joulecast.meters.nvml import Edge
from joulecast.meters.pollers import format_event
from joulecast.testing.meters import MeterContract


class VirtualClock:
    """A clock that advances only in ``sleep``, and calls ``hooks`` after every step."""

    def __init__(self, start_s=1000.0, step_s=0.01):
        self.time_s, self.step_s = start_s, step_s
        self.hooks = []

    def now(self):
        return self.time_s

    def sleep(self, duration_s):
        end_s = self.time_s + duration_s
        while self.time_s < end_s:
            self.time_s = min(self.time_s + self.step_s, end_s)
            for hook in list(self.hooks):
                hook()

    def make_ticker(self, every_s, tick):
        return VirtualTicker(self, every_s, tick)


class VirtualTicker:
    """A ticker on the virtual clock."""

    def __init__(self, clock, every_s, tick):
        self.clock, self.every_s, self.tick = clock, every_s, tick

    def start(self):
        self.stop()
        self.next_s = self.clock.now() + self.every_s
        self.clock.hooks.append(self.update)

    def stop(self):
        if self.update in self.clock.hooks:
            self.clock.hooks.remove(self.update)

    def update(self):
        if self.clock.now() >= self.next_s:
            self.next_s += self.every_s
            self.tick()


def read_through(clock, meter, *steps):
    """Return the reading of a window: seconds that pass, and functions that are called."""
    meter.begin()
    for step in steps:
        step() if callable(step) else clock.sleep(step)
    return meter.end()


class VirtualContract(MeterContract):
    """The contract of a meter on a virtual clock."""

    step_s = 0.01

    @pytest.fixture(autouse=True)
    def set_clock(self):
        self.clock = VirtualClock(step_s=self.step_s)

    def load(self, duration_s):
        self.clock.sleep(duration_s)

    def read_through(self, *steps):
        """Return the reading of a window of a new meter."""
        with self.make_meter() as meter:
            return read_through(self.clock, meter, *steps)


class LinePoller:
    """A poller on a virtual clock: lines that ``update`` writes after every step of it."""

    def __init__(self, clock, ready):
        self.clock, self.lines = clock, queue.Queue()
        self.write(f"ready {ready}")
        clock.hooks.append(self.update)

    def write(self, line):
        self.lines.put(line + "\n")

    def __iter__(self):
        return iter(self.lines.get, None)

    def stop(self):
        self.clock.hooks.remove(self.update)
        self.lines.put(None)


class VirtualPoller(LinePoller):
    """The lines of an NVML poller for a GPU of constant power.

    Set its attributes to change what the next edges show.
    """

    PERIOD_S = 0.1

    def __init__(self, clock, power_w=400.0, source="counter"):
        super().__init__(clock, f"{self.PERIOD_S} {source}")
        self.power_w, self.energy_j = power_w, 1000.0
        self.shown = {"sensor_w": power_w, "limit_w": 700.0, "busy_share": 1.0}
        self.number = int(clock.now() / self.PERIOD_S)
        self.write(f"beat {clock.now()!r}")

    def update(self):
        while (self.number + 1) * self.PERIOD_S <= self.clock.now():
            self.number += 1
            self.energy_j += self.PERIOD_S * self.power_w
            time_s = self.number * self.PERIOD_S + 0.0005
            self.write(format_event(Edge(time_s, self.energy_j, 0.001, **self.shown)))
        self.write(f"beat {self.clock.now()!r}")
