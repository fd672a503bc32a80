"""Fixtures for NeuralPower: a device on which stages cost what their work says."""

import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.baselines.neuralpower import NeuralPowerEstimator
from joulecast.estimators.baselines.stages import list_stages, read_stage
from joulecast.families import make_family
from joulecast.records import Observation
from joulecast.testing.estimators import FAMILY, SETUP
from joulecast.variants import split_network


class IdealDevice:
    """A device whose durations are linear in the work, at constant power."""

    def __init__(self):
        self._profiles = {}

    def find_cost(self, stage):
        """Return the energy and duration of a stage."""
        work = stage.work
        duration_s = 1e-5 * work.launches + 1e-11 * work.size_bytes + 1e-12 * work.flops
        return 20.0 * duration_s, duration_s

    def sum_stages(self, network):
        """Return the energy and duration of a network's step."""
        parts = [placed.part for placed in split_network(network)]
        costs = [self.find_cost(stage) for part in parts for stage in list_stages(part, SETUP)]
        return tuple(map(sum, zip(*costs, strict=True)))

    def observe(self, trial):
        """Return the observation of a trial."""
        energy_j, duration_s = self.find_cost(read_stage(Observation(trial)).stage)
        times = trial.execution.copies * trial.execution.steps
        return Observation(trial, energy_j * times, None, duration_s * times)

    def run_campaign(self, target, refuse=lambda trial: False, points=1000):
        """Return observations, and refusals, until the estimator proposes nothing more."""
        seen = []
        while len(seen) < points:
            trial = NeuralPowerEstimator().propose(target, seen).trial
            if trial is None:
                break
            seen.append(Observation(trial) if refuse(trial) else self.observe(trial))
        return seen

    def profile(self, family=FAMILY, points=1000):
        """Return the observations of a campaign, and a fit to them, made once."""
        key = family, points
        if key not in self._profiles:
            seen = self.run_campaign(Target(make_family(family), SETUP), points=points)
            self._profiles[key] = seen, NeuralPowerEstimator().fit(seen)
        return self._profiles[key]


DEVICE = IdealDevice()


@pytest.fixture
def ideal():
    return DEVICE
