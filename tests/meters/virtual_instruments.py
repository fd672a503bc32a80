"""Virtual clocks and instruments for tests of meters: no real time, no randomness."""

import pytest

from joulecast.meters.nvml import Edge
from joulecast.system.errors import MeasurementError
from joulecast.testing.meters import MeterContract


class VirtualClock:
    """A clock that advances only in ``sleep``, and calls ``hooks`` after every step."""

    def __init__(self, start_s=1000.0, step_s=0.01):
        self.time_s, self.step_s = start_s, step_s
        self.hooks = []

    def now(self):
        return self.time_s

    wall_time = now

    def sleep(self, duration_s):
        end_s = self.time_s + duration_s
        while self.time_s < end_s:
            self.time_s = min(self.time_s + self.step_s, end_s)
            for hook in list(self.hooks):
                hook()

    def drive(self, meter):
        """Let a meter use this clock, and return it."""
        meter.clock = self
        meter.make_ticker = lambda every_s, tick: VirtualTicker(self, every_s, tick)
        return meter


class VirtualTicker:
    """A ticker on the virtual clock."""

    def __init__(self, clock, every_s, tick):
        self.clock, self.every_s, self.tick = clock, every_s, tick
        self.next_s = clock.now() + every_s
        clock.hooks.append(self.update)

    def stop(self):
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
    """The contract of a meter on a virtual clock; ``make`` makes it.

    Attributes:
        power_w: That of the load, which is read but for ``power_share`` of it.
    """

    step_s = 0.01
    power_w = None
    power_share = 1e-6

    @pytest.fixture(autouse=True)
    def set_clock(self):
        self.clock = VirtualClock(step_s=self.step_s)

    def make_meter(self):
        return self.clock.drive(self.make())

    def load(self, duration_s):
        self.clock.sleep(duration_s)

    def test_power_is_that_of_the_load(self):
        with self.make_meter() as meter:
            power_w = self.read(meter).power_w
        assert power_w == pytest.approx(self.power_w, rel=self.power_share)

    def read_through(self, *steps):
        """Return the reading of a window of a new meter."""
        with self.make_meter() as meter:
            return read_through(self.clock, meter, *steps)


class VirtualPoller:
    """A poller on a virtual clock, to whose events ``update`` adds after every step of it.

    Attributes:
        failure: Why it no longer answers.
    """

    def __init__(self, clock, update_interval_s, source):
        self.clock, self.ready = clock, [update_interval_s, source]
        self.events, self.failure = [], ""
        clock.hooks.append(self.update)

    def drive(self, meter):
        """Let a meter use this poller and its clock, and return it."""
        meter.make_poller = lambda module, instrument: self
        return self.clock.drive(meter)

    def ask(self, request, limit_s):
        if self.failure:
            raise MeasurementError(self.failure)
        answer = {"open": self.ready, "begin": None, "end": self.events}[request]
        self.events = []
        return answer

    def stop(self):
        self.events = []


class GpuPoller(VirtualPoller):
    """The poller of a GPU of constant power; ``shown`` is what the next edges show."""

    PERIOD_S = 0.1

    def __init__(self, clock, power_w=400.0, source="counter"):
        super().__init__(clock, self.PERIOD_S, source)
        self.power_w, self.energy_j = power_w, 1000.0
        self.shown = {"sensor_w": power_w, "limit_w": 700.0, "busy_share": 1.0}
        self.number = int(clock.now() / self.PERIOD_S)

    def update(self):
        while (self.number + 1) * self.PERIOD_S <= self.clock.now():
            self.number += 1
            self.energy_j += self.PERIOD_S * self.power_w
            time_s = self.number * self.PERIOD_S + 0.0005
            self.events.append(Edge(time_s, self.energy_j, 0.001, **self.shown))
