"""Predictions of the fitted model for networks given by their pieces."""

from collections import Counter
from dataclasses import replace

import pytest

from additive_examples import (
    count_network,
    draw_networks,
    observe_parts,
)
from joulecast.estimators.additive.device_model import predict_durations, predict_totals
from joulecast.estimators.additive.encode import encode_counts
from joulecast.estimators.additive.model_fit import fit_model
from joulecast.estimators.additivity_error import ISOLATED_SUM_ERROR_SD_SHARE


def test_device_energies_of_joined_networks_add(model):
    one, two = (Counter(count_network(network, model)) for network in draw_networks(2, seed=3))
    totals = predict_totals(model, [one, two, one + two], ISOLATED_SUM_ERROR_SD_SHARE)
    energy_j = totals.device_energy_j
    assert energy_j[2] == pytest.approx(energy_j[0] + energy_j[1], rel=1e-9)


def test_more_observations_never_raise_a_variance_under_fixed_hyper_parameters(
    device, model, observations
):
    counts = [count_network(network, model) for network in draw_networks(6, seed=4)]
    before = duration_variances(model, model, counts)
    extra = observe_parts(device, draw_networks(3, seed=12))
    after = duration_variances(fit_model([*observations, *extra]), model, counts)
    assert (after <= before * (1 + 1e-6)).all()
    assert (after < 0.99 * before).any()


def duration_variances(model, fixed, counts):
    """Return the variances of durations under the mode of another model's hyper-parameters."""
    fitted = replace(model.duration.fitted, thetas=fixed.duration.fitted.thetas[:1])
    process = replace(model.duration, fitted=fitted)
    return predict_durations(model.encoder, process, *encode_counts(counts)).variance
