"""A simulated device without noise, its observations, and a model fitted to them."""

import pytest

from additive_examples import SETUP, draw_networks, observe_blocks, observe_idle, observe_step
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.additive.fit import fit_model
from joulecast.records import Trial
from joulecast.simulation import make_simulated_device


@pytest.fixture(scope="session")
def device():
    return make_simulated_device(201, noise=0.0)


@pytest.fixture(scope="session")
def observations(device):
    """Graphs of the parts of eight networks, eager durations of two, and the idle device."""
    networks = draw_networks(8, seed=1)
    eager = [observe_step(device, Trial(one, SETUP), energy=False) for one in networks[:2]]
    return [*observe_blocks(device, networks), *eager, observe_idle(device)]


@pytest.fixture(scope="session")
def model(observations):
    return fit_model(observations)


@pytest.fixture(scope="session")
def fitted(observations):
    return AdditiveEstimator().fit(observations)
