"""Recordings on simulated devices, and power traces of them with another clock."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from joulecast.families import draw_family
from joulecast.measurer import MeasureClock, Measurer
from joulecast.meters.file import LaterMeter
from joulecast.records import Observation, Setup, Trial
from joulecast.simulation import SimulatedDevice, make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime

WALL_S = 1e9


@dataclass(frozen=True)
class Instrument:
    """A power monitor: its clock against that of the device, and its samples."""

    offset_s: float = 0.0
    drift: float = 0.0
    rate_hz: float = 1000.0
    noise_share: float = 0.005

    def read_clock(self, times_s):
        return self.offset_s + (1 + self.drift) * np.asarray(times_s)

    def sample(self, device: SimulatedDevice, start_s=0.0, end_s=None):
        """Return times and mean powers of all samples, on the clock of the instrument."""
        edges = np.arange(start_s, device.now() if end_s is None else end_s, 1 / self.rate_hz)
        energies = np.array([device.energy_at(one) for one in edges])
        powers = np.diff(energies) / np.diff(edges)
        rng = np.random.default_rng(7)
        noisy = powers * (1 + self.noise_share * rng.standard_normal(len(powers)))
        return self.read_clock((edges[1:] + edges[:-1]) / 2), noisy


def record_trials(seed: int, count: int, run: str = "run") -> tuple[SimulatedDevice, list]:
    """Record random nets, and the idle device once; return the device and the observations."""
    device, rng = make_simulated_device(seed), random.Random(seed)
    meter = LaterMeter("device", "simulated", now=device.now, wall=lambda: WALL_S + device.now())
    clock = MeasureClock(device.now, device.sleep)
    observed: list[Observation] = []
    with Measurer(SimulatedRuntime(device), meter, clock=clock, run=run) as measurer:
        for _ in range(count):
            network = draw_family(rng.choice(("lenet5", "cnn5", "har")), rng.randint)
            observed.append(measurer.measure(Trial(network, Setup(batch=8))))
        observed.append(measurer.measure_idle())
    device.sleep(1.0)
    return device, observed


def read_live(device: SimulatedDevice, observation: Observation) -> float:
    """Return the energy of a step that an exact meter would have read in the same windows."""
    steps_j = []
    for window in observation.windows:
        start_s, end_s = window.start_s - WALL_S, window.end_s - WALL_S
        energy_j = device.energy_at(end_s) - device.energy_at(start_s)
        is_idle = not observation.trial.network.layers
        steps_j.append(energy_j / ((end_s - start_s) if is_idle else window.steps))
    return float(np.median(steps_j))
