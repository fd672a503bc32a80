"""A simulated device without noise, its observations, and a model fitted to them."""

import pytest

from additive_examples import draw_networks, observe_device
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.additive.fit import fit_model
from joulecast.simulation import make_simulated_device


@pytest.fixture(scope="session")
def device():
    return make_simulated_device(201, noise=0.0)


@pytest.fixture(scope="session")
def observations(device):
    return observe_device(device, draw_networks(8, seed=1))


@pytest.fixture(scope="session")
def model(observations):
    return fit_model(observations)


@pytest.fixture(scope="session")
def fitted(observations):
    return AdditiveEstimator().fit(observations)
