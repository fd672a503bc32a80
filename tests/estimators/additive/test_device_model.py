"""Predictions of the fitted model for networks given by their pieces."""

from collections import Counter
from dataclasses import replace

import pytest

from additive_examples import (
    SETUP,
    count_network,
    draw_networks,
    observe_on_unit,
    observe_parts,
    observe_step,
)
from joulecast.estimators.additive.device_model import predict_durations, predict_totals
from joulecast.estimators.additive.encode import encode_counts
from joulecast.estimators.additive.model_fit import fit_model
from joulecast.estimators.additive.pieces import count_pieces, split_pieces
from joulecast.estimators.sum_errors import ISOLATED_SUM_ERROR_SHARE
from joulecast.records import Trial


def test_device_energies_of_joined_networks_add(model):
    one, two = (Counter(count_network(network, model)) for network in draw_networks(2, seed=3))
    totals = predict_totals(model, [one, two, one + two], ISOLATED_SUM_ERROR_SHARE)
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


def test_structures_are_fitted_to_all_hosts_and_their_pace_to_the_own_one(device, observations):
    networks = draw_networks(4, seed=71)
    eager = [observe_step(device, Trial(one, SETUP), energy=False) for one in networks]
    slow = [
        replace(one, issue_s=3.0 * one.issue_s, duration_s=max(one.duration_s, 3.0 * one.issue_s))
        for one in eager
    ]
    plain = fit_model([*observations, *eager]).host_time
    other = observe_on_unit(observations, "other", 1.0, 0.0)
    own = fit_model([*other, *observe_on_unit(slow, "own", 1.0, 1e6)]).host_time
    counts = count_pieces(split_pieces(networks[0], SETUP, ()))
    own_s, plain_s = (host.predict_issue_time(counts)[0] for host in (own, plain))
    assert own_s == pytest.approx(3.0 * plain_s, rel=0.1)
    assert own.network_count == len(slow)
