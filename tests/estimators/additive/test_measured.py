"""What was measured of each kind, and how far estimates reach beyond it."""

import numpy as np
import pytest

from additive_examples import SETUP, count_network, draw_networks, observe_parts, observe_step
from joulecast.estimators.additive.estimator import (
    find_unseen_shares,
    note_extrapolation,
    update_prediction,
)
from joulecast.estimators.additive.layers import split_layers
from joulecast.estimators.additive.observations import (
    MeasuredKind,
    MeasuredNetwork,
    add_kinds,
    decompose_observations,
    hash_layers,
    share_half_precisions,
    summarise_kinds,
    summarise_networks,
)
from joulecast.estimators.additive.predict import predict_totals
from joulecast.estimators.base import Prediction
from joulecast.families import make_family
from joulecast.operators import make_layer
from joulecast.records import Input, LayerEstimate, Network, Trial


@pytest.fixture(scope="module")
def kinds(observations):
    return summarise_kinds(decompose_observations(observations))


def predict(model, *networks):
    return predict_totals(model, [count_network(network) for network in networks], 0.0)


def linear_network(width):
    return Network((make_layer("linear", cin=width, cout=width),), Input((width,)))


def test_distinct_layers_are_counted(device):
    networks = draw_networks(3, seed=1)
    parts = observe_parts(device, networks)
    timed = observe_parts(device, draw_networks(1, seed=2), energy=False)
    found = summarise_kinds(decompose_observations([*parts, *parts, *timed]))
    for label in ("conv2d fp32", "linear+loss fp32"):
        own = [one for one in parts if label in list_labels(one)]
        assert found[label].energy_points == len(own) > 0
        assert found[label].duration_points > found[label].energy_points


def test_kinds_of_further_layers_are_added(device):
    first = observe_parts(device, draw_networks(2, seed=1))
    second = observe_parts(device, draw_networks(2, seed=2))
    keys = {one.trial.key for one in first}
    second = [one for one in second if one.trial.key not in keys]
    one, two, both = (
        summarise_kinds(decompose_observations(some)) for some in (first, second, [*first, *second])
    )
    assert add_kinds(one, two) == both
    assert add_kinds(one, {}) == one


def list_labels(observation):
    (one,) = decompose_observations([observation])
    return {layer.label for layer in one.counts}


def test_unseen_share_is_that_of_unmeasured_labels(model, kinds):
    shares = find_unseen_shares(
        kinds, predict(model, draw_networks(1, seed=5)[0], make_family("transformer:64,2"))
    )
    assert shares[0] == 0.0
    assert 0.1 < shares[1] < 1.0
    assert find_unseen_shares({}, predict(model, draw_networks(1, seed=5)[0])) == (1.0,)


def test_kinds_that_were_never_measured_are_noted(model, kinds):
    (notes,) = note_extrapolation(kinds, predict(model, make_family("lstm")))
    assert "lstm fp32 was never measured: estimated from similar operators" in notes


def test_sizes_beyond_measured_ones_are_noted(model, kinds):
    small, large = note_extrapolation(kinds, predict(model, *map(linear_network, (64, 16384))))
    assert not any("linear" in one for one in small)
    assert any(one.startswith("extrapolated") and "linear fp32" in one for one in large)


def test_half_precisions_share_what_was_measured():
    fp16, bf16, fp32 = MeasuredKind(1), MeasuredKind(2), MeasuredKind(3)
    measured = {"relu fp16": fp16, "gelu bf16 inference": bf16, "add fp32": fp32, "add fp16": fp16}
    shared = share_half_precisions(measured)
    assert shared["relu bf16"] == fp16 and shared["gelu fp16 inference"] == bf16
    assert shared["add fp32"] == fp32 and len(shared) == 7


def test_prediction_moves_by_the_ratio_of_variances():
    layers = ((LayerEstimate("a", "linear", 10.0, 1),),) * 2
    prediction = Prediction(
        energy_j=np.array([10.0, 10.0]),
        energy_sd_j=np.array([1.0, 1.0]),
        energy_cov=np.eye(2),
        duration_s=np.array([1.0, 1.0]),
        layers=layers,
        unseen_share=(0.0, 0.0),
        device_energy_j=np.array([5.0, 5.0]),
    )
    updated = update_prediction(prediction, [MeasuredNetwork(14.0, 3.0, 2.0), None])
    assert updated.energy_j == pytest.approx([11.0, 10.0])
    assert updated.duration_s == pytest.approx([1.25, 1.0])
    assert updated.energy_sd_j == pytest.approx([0.75**0.5, 1.0])
    assert np.diag(updated.energy_cov) == pytest.approx(updated.energy_sd_j**2)
    assert updated.device_energy_j == pytest.approx([5.5, 5.0])
    assert [one[0].energy_j for one in updated.layers] == pytest.approx([11.0, 10.0])


def test_whole_eager_steps_are_summarised(device):
    network = draw_networks(1, seed=3)[0]
    run = observe_step(device, Trial(network, SETUP))
    graphs = observe_parts(device, [network])
    measured = summarise_networks([run, run, *graphs])
    layers = split_layers(network, SETUP)
    assert list(measured) == [hash_layers(layers)]
    (found,) = measured.values()
    assert found.energy_j == pytest.approx(run.energy_j)
    assert found.energy_var_j2 == pytest.approx((0.03 * run.energy_j) ** 2)
    assert hash_layers(layers, is_graph=True) not in measured
