"""A toy plug-in: a meter of almost constant power, and a runtime that computes nothing useful.

The tests install it as a distribution of its own. It imports only public names of Joulecast.
"""

import time

from joulecast.meters import GuardedMeter, MeterInfo, MeterSpec, Reading
from joulecast.records import Device
from joulecast.system.errors import InputError, NetError

_BUSY_W = 0.1


class ToyMeter(GuardedMeter):
    """A meter of constant power, and a little more while this process computes."""

    name = "toy"
    covers = "toy"
    window_s = 0.02

    def __init__(self, power_w=5.0, now=time.monotonic):
        self._power_w = power_w
        self._now = now

    def _start(self):
        self._started_s, self._cpu_s = self._now(), time.process_time()

    def _stop(self):
        duration_s = self._now() - self._started_s
        faults = () if duration_s > 0 else ("too short",)
        busy_s = time.process_time() - self._cpu_s
        return Reading(self._power_w * duration_s + _BUSY_W * busy_s, duration_s, faults)


def make_toy_meter(request):
    try:
        return ToyMeter(float(request.argument or 5.0))
    except ValueError as error:
        raise InputError(f"toy:{request.argument} is not a power: give watts") from error


METER = MeterSpec(
    "toy[:WATTS]", make_toy_meter, lambda: (MeterInfo("toy", True, "always 5 W", covers="toy"),)
)


class ToyStep:
    """A step that keeps the processor busy for 50 µs per layer."""

    def __init__(self, layers):
        self._duration_s = 50e-6 * layers

    def run(self, count):
        end_s = time.perf_counter() + count * self._duration_s
        while time.perf_counter() < end_s:
            pass

    def wait(self):
        pass

    def peak_memory_bytes(self):
        return 0

    def close(self):
        pass


class ToyRuntime:
    """A runtime whose steps compute nothing."""

    name = "toy-1.0"
    modes = ("eager",)

    def __init__(self, on="toy"):
        self.device = Device(on.replace(":", "-"))

    def prepare(self, trial):
        if not trial.network.layers:
            raise NetError("the network is empty: give one with layers")
        step = ToyStep(len(trial.network.layers) * trial.execution.copies)
        step.run(2)
        return step
