"""Estimates of networks that were measured as a whole."""

import numpy as np
import pytest

from additive_examples import SETUP, draw_networks, observe_parts, observe_step
from joulecast.estimators.additive.layers import split_layers
from joulecast.estimators.additive.measured import (
    MeasuredNetwork,
    hash_layers,
    summarise_networks,
    update_prediction,
)
from joulecast.estimators.base import Prediction
from joulecast.records import LayerEstimate, Trial


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
    pieces = split_layers(network, SETUP)
    assert list(measured) == [hash_layers(pieces)]
    (found,) = measured.values()
    assert found.energy_j == pytest.approx(run.energy_j)
    assert found.energy_var_j2 == pytest.approx((0.03 * run.energy_j) ** 2)
    assert hash_layers(pieces, is_graph=True) not in measured
