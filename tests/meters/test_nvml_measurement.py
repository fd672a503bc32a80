"""A measurer on a virtual GPU that behaves as H200s do: valid windows pass, wrong values do not."""

import math
import random
from collections import deque
from statistics import fmean

import pytest
from virtual_instruments import LinePoller, VirtualClock

from joulecast.families import make_family
from joulecast.measurer import MeasureClock, Measurer
from joulecast.meters.nvml import Edge, NvmlMeter
from joulecast.meters.pollers import format_event
from joulecast.records import Device, Setup, Trial
from joulecast.system.errors import ContaminatedError

NETS = [Trial(make_family(name), Setup()) for name in ("lenet5", "cnn5", "har", "lstm")]
IDLE_W = 122.0


class VirtualGpu(LinePoller):
    """A GPU with its poller: its sensor and its utilisation are averages over the last second.

    The sensor is updated every 100 ms, and utilisation every second.

    Attributes:
        other_w: Power of a hidden program.
        other_share: How busy it keeps the GPU.
        distort: Changes what the counter shows.
        stuck_w: What the power sensor shows instead of power.
    """

    name, modes, device = "virtual-1", ("eager",), Device("virtual")
    POLL_S = 0.02

    def __init__(self, powers_w, source="counter", step_s=0.02):
        super().__init__(VirtualClock(step_s=self.POLL_S), f"0.1 {source}")
        self.powers_w, self.step_s, self.source = powers_w, step_s, source
        self.other_w = self.other_share = 0.0
        self.limit_w, self.stuck_w, self.load_w = 700.0, None, None
        self.distort = lambda energy_j: energy_j
        self.energy_j, self.sensor_w, self.busy_share = 1e6, IDLE_W, 0.0
        self.updated_s = self.next_s = self.sensed_s = self.counted_s = self.clock.now()
        self.powers, self.shares = (deque(maxlen=round(1 / self.POLL_S)) for _ in range(2))
        self.rng = random.Random(1)

    # The runtime and its step

    def prepare(self, trial):
        self.clock.sleep(0.3)
        self.trial = trial
        return self

    def run(self, count):
        self.load_w = self.powers_w[NETS.index(self.trial)]
        self.clock.sleep(count * self.step_s)
        self.load_w = None

    def wait(self):
        pass

    def close(self):
        pass

    def peak_memory_bytes(self):
        return 0

    # The poller

    def update(self):
        now_s = self.clock.now()
        noise_w = self.rng.gauss(0.0, 2.0)
        power_w = (self.load_w or IDLE_W) + self.other_w + noise_w
        self.energy_j += (now_s - self.updated_s) * power_w
        self.updated_s = now_s
        self.powers.append(power_w)
        self.shares.append(1.0 if self.load_w else self.other_share)
        if now_s >= self.sensed_s + 0.1:
            self.sensed_s, self.sensor_w = now_s, fmean(self.powers)
        if now_s >= self.counted_s + 1.0:
            self.counted_s, self.busy_share = now_s, fmean(self.shares)
        if now_s >= self.next_s:
            self.next_s += 0.1 if self.source == "counter" else self.POLL_S
            self.write(format_event(self.make_edge(now_s)))
        self.write(f"beat {now_s!r}")

    def make_edge(self, now_s):
        energy_j, sensor_w = self.distort(self.energy_j), self.sensor_w
        if self.stuck_w is not None:
            sensor_w = self.stuck_w
            if self.source == "sensor":
                energy_j = self.stuck_w * now_s
        shown = {"sensor_w": sensor_w, "limit_w": self.limit_w, "busy_share": self.busy_share}
        return Edge(now_s, energy_j, 0.001, **shown)


@pytest.fixture
def measure_all():
    """Return a function that measures all nets, and then the idle GPU."""

    def run(gpu, repeats=1):
        clock = MeasureClock(gpu.clock.now, gpu.clock.sleep, gpu.clock.now)
        meter = NvmlMeter(now=gpu.clock.now, start=lambda uuid: gpu)
        with Measurer(gpu, meter, clock=clock) as measurer:
            found = []
            for _ in range(repeats):
                found.extend(measurer.measure(trial) for trial in NETS)
                found.append(measurer.measure_idle())
        return found, measurer

    return run


@pytest.mark.parametrize("step_s", [0.002, 0.02, 0.7, 2.0])
@pytest.mark.parametrize("powers_w", [(650.0, 124.0, 755.0, 300.0), (123.0, 700.0, 121.0, 745.0)])
def test_valid_measurements_pass(measure_all, powers_w, step_s):
    """Heavy and light loads in turn, at the power limit and hardly above idle power."""
    found, measurer = measure_all(VirtualGpu(powers_w, step_s=step_s), repeats=2)
    assert measurer.disturbances == {}
    for number, seen in enumerate(found):
        place = number % (len(NETS) + 1)
        true_w = powers_w[place] if place < len(NETS) else IDLE_W
        assert seen.energy_j / seen.duration_s == pytest.approx(true_w, rel=0.02)
        assert seen.unchecked == ()


def test_gpu_without_a_counter_passes_too(measure_all):
    found, measurer = measure_all(VirtualGpu((400.0, 200.0, 600.0, 300.0), source="sensor"))
    assert measurer.disturbances == {}
    assert {seen.unchecked for seen in found} == {("second sensor",)}


def make_jumps(factor):
    """Return a counter that jumps every half second, so that power seems higher by a factor."""
    return lambda energy_j: energy_j + (factor - 1) * 0.5 * 400.0 * math.floor(energy_j / 200.0)


@pytest.mark.parametrize(
    ("source", "change", "fault"),
    [
        ("counter", {"other_w": 160.0, "other_share": 0.9}, "other load"),
        ("counter", {"other_w": 160.0, "other_share": 0.4}, "other load"),
        ("counter", {"distort": make_jumps(5.0)}, "implausible"),
        ("counter", {"distort": lambda energy_j: 5 * energy_j}, "implausible"),
        ("counter", {"distort": lambda energy_j: 0.1 * energy_j}, "implausible"),
        ("counter", {"stuck_w": 150.0}, "implausible"),
        ("sensor", {"stuck_w": 150.0}, "stuck"),
    ],
)
def test_wrong_values_are_refused(measure_all, source, change, fault):
    gpu = VirtualGpu((500.0, 500.0, 500.0, 500.0), source)
    vars(gpu).update(change)
    with pytest.raises(ContaminatedError, match=f"because of {fault}"):
        measure_all(gpu)


def test_limit_that_is_lowered_during_a_campaign_is_refused(measure_all):
    gpu = VirtualGpu((300.0, 300.0, 300.0, 300.0))
    gpu.clock.hooks.append(
        lambda: setattr(gpu, "limit_w", 400.0 if gpu.clock.now() > 1008.0 else 700.0)
    )
    with pytest.raises(ContaminatedError, match=r"limit changed: 700 W before, 400 W now"):
        measure_all(gpu)
