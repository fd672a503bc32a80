"""Fits as JSON."""

import json

import pytest

from additive_examples import count_network, draw_networks
from joulecast.estimators.additive.device_model import predict_totals
from joulecast.estimators.additive.measured_networks import MeasuredNetwork
from joulecast.estimators.additive.stored_fit import StoredFit


@pytest.fixture(scope="module")
def stored(model):
    runs = {"hash": MeasuredNetwork(1.0, 0.01, 0.1)}
    return StoredFit.from_model(model, 3, 0.012, runs, {"conv2d fp32": {"joules": 1, "seconds": 2}})


def test_json_round_trip_is_exact(stored):
    data = stored.to_dict()
    assert StoredFit.from_dict(json.loads(json.dumps(data))).to_dict() == data


def test_restored_model_predicts_the_same(stored, model):
    networks = [count_network(network, model) for network in draw_networks(3, seed=6)]
    one, two = (predict_totals(some, networks, 0.012) for some in (model, stored.restore_model()))
    assert two.energy_j == pytest.approx(one.energy_j, rel=1e-12)
    assert two.variance == pytest.approx(one.variance, rel=1e-9)


def test_keys_are_those_of_shipped_profiles(stored):
    data = stored.to_dict()
    assert set(data) == {
        "version", "seen", "off_share", "runs", "looks", "form", "idle_w", "labels", "rates",
        "launch_s", "time", "energy", "clock",
    }  # fmt: skip
    assert set(data["energy"]) == {
        "pieces", "times_s", "rows", "values", "known", "above", "units", "spread", "level",
        "thetas",
    }  # fmt: skip
    assert set(data["clock"]) == {
        "begin_s", "calls_s", "habits", "gap_s", "spread", "nets", "gap_sd_s",
    }  # fmt: skip
    assert set(data["runs"]["hash"]) == {"energy_j", "variance", "duration_s"}
