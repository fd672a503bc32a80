"""A simulated device, a small target and a log, for tests of campaigns and what they leave."""

from joulecast.campaign import ObservationLog
from joulecast.estimators.base import Target
from joulecast.families import make_family
from joulecast.measurer import MeasureClock, Measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Setup
from joulecast.simulation import Chip, SimulatedDevice, make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime

SMALL = Target(make_family("lenet5:4,6,24,16"), Setup(batch=10))


def make_noiseless_device(seed=0, **options):
    """Return a device without noise and without warm-up."""
    return SimulatedDevice(Chip(seed), noise=0.0, **{"settle_share": 0.0, **options})


def make_simulated_measurer(run="first", runtime=SimulatedRuntime, rounds=None, **options):
    device = make_simulated_device(5, **options)
    clock = MeasureClock(device.now, device.sleep, device.now)
    chosen = {} if rounds is None else {"rounds": rounds}
    return Measurer(runtime(device), SimulatedMeter(device), run=run, clock=clock, **chosen)


class MemoryLog(ObservationLog):
    """A log of observations that keeps them in a list."""

    def __init__(self):
        self.observations = []

    def add_observation(self, observation):
        self.observations.append(observation)
