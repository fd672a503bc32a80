"""Fits of the model of a device."""

from dataclasses import replace

import pytest

from additive_examples import (
    SETUP,
    draw_networks,
    observe_on_unit,
    observe_parts,
    observe_step,
)
from joulecast.errors import MissingError
from joulecast.estimators.additive.fit import fit_model
from joulecast.estimators.additive.layers import count_layers, split_layers
from joulecast.records import Trial


def test_order_of_observations_does_not_matter(model, observations):
    again = fit_model(observations[::-1])
    assert (again.duration.theta == model.duration.theta).all()
    assert (again.power.theta == model.power.theta).all()


def test_probes_alone_are_too_little(device):
    probes = observe_parts(device, draw_networks(2), energy=False)
    with pytest.raises(MissingError, match="profile"):
        fit_model(probes)


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
    counts = count_layers(split_layers(networks[0], SETUP))
    own_s, plain_s = (host.predict_issue_time(counts)[0] for host in (own, plain))
    assert own_s == pytest.approx(3.0 * plain_s, rel=0.1)
    assert own.network_count == len(slow)
