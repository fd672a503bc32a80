"""Fits as JSON."""

import json

import pytest

from additive_examples import count_network, draw_networks
from joulecast.estimators.additive.estimator import FIT_VERSION, AdditiveEstimator, StoredFit
from joulecast.estimators.additive.predict import predict_totals


@pytest.fixture(scope="module")
def fitted(observations):
    return AdditiveEstimator().fit(observations)


def test_json_round_trip_is_exact(fitted):
    data = fitted.to_dict()
    assert StoredFit.from_dict(json.loads(json.dumps(data))).to_dict() == data
    assert data["version"] == FIT_VERSION == AdditiveEstimator.version


def test_restored_model_predicts_exactly_the_same(fitted):
    networks = [count_network(network) for network in draw_networks(3, seed=6)]
    restored = StoredFit.from_dict(fitted.to_dict()).restore_model()
    one, two = (predict_totals(some, networks, 0.012) for some in (fitted.model, restored))
    assert (two.energy_j == one.energy_j).all()
    assert (two.variance == one.variance).all()


def test_restored_fit_is_extended_as_the_first_one(device, observations, fitted):
    """A stored fit knows which observations it has seen."""
    restored = AdditiveEstimator().load(fitted.to_dict())
    assert restored.observation_count == fitted.observation_count
    assert AdditiveEstimator().fit(observations[::-1], restored) is restored
