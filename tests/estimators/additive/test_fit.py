"""Fits of the model of a device."""

from dataclasses import replace

import numpy as np
import pytest

from additive_examples import (
    SETUP,
    draw_networks,
    observe_on_unit,
    observe_parts,
    observe_step,
)
from joulecast.estimators.additive.encode import define_durations, define_powers
from joulecast.estimators.additive.fit import (
    encode_decomposed,
    find_powers,
    fit_model,
    observe_durations,
)
from joulecast.estimators.additive.layers import count_layers, split_layers
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.estimators.additive.predict import predict_durations
from joulecast.records import Trial
from joulecast.system.errors import MissingError


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


@pytest.fixture(scope="module")
def rows(observations):
    return [one for one in decompose_observations(observations) if one.mode == "graph"]


def test_powers_of_graphs_are_energy_over_time_and_need_both(model, rows):
    timed = [replace(one, energy_j=None) for one in rows[:2]]
    some = [*timed, *rows[2:5]]
    busy = predict_durations(model.encoder, model.duration, encode_decomposed(model.encoder, some))
    found = find_powers(some, busy, "graph", model.idle_w, 0.0)
    assert [one.observation for one in found] == rows[2:5]
    assert [one.power_w for one in found] == pytest.approx(
        [one.energy_j / one.duration_s for one in rows[2:5]]
    )


def test_networks_are_one_stratum_and_labels_are_others(model, observations):
    every = [one for one in decompose_observations(observations) if one.duration_s]
    sums = encode_decomposed(model.encoder, every)
    strata = observe_durations(every, sums, np.ones(len(sums.operators))).strata
    networks = {number for one, number in zip(every, strata, strict=True) if not one.is_isolated}
    labels = {number for one, number in zip(every, strata, strict=True) if one.is_isolated}
    assert len(networks) == 1 and len(labels) > 1 and not networks & labels


@pytest.fixture(scope="module")
def encoder(model):
    return model.encoder


def test_costs_of_the_roofline_are_medians(encoder):
    process = define_durations(encoder, overhead_s=1.0)
    assert [median for median, _ in process.coefficients] == list(encoder.roofline.costs)
    assert [log_sd for _, log_sd in process.coefficients] == list(encoder.roofline.log_sds)


def test_idle_power_sets_the_prior_of_static_power(encoder):
    unknown, one, two = (
        define_powers(encoder, idle_w, 1.0).coefficients[0][0] for idle_w in (0.0, 4.0, 8.0)
    )
    assert two == pytest.approx(2.0 * one)
    assert one > 4.0
    assert 0.0 < unknown < encoder.power_limit_w


def test_overheads_have_coefficients_of_their_own(encoder):
    own = replace(encoder, overheads=("overhead of a", "overhead of b"))
    for define, value in (
        (define_durations, 7.0),
        (lambda *a: define_powers(a[0], 1.0, a[1]), 9.0),
    ):
        plain, more = (define(one, value).coefficients for one in (encoder, own))
        assert more[: len(plain)] == plain
        assert [median for median, _ in more[len(plain) :]] == [value, value]


def test_noise_of_imported_runs_needs_all_to_be_imported(observations):
    observations = observations[:12]
    imported = [replace(one, provenance="imported") for one in observations]
    noises = [
        fit_model(some).power.process.noise_sd
        for some in (imported, [*imported[1:], observations[0]], observations)
    ]
    assert noises[0] != noises[1] == noises[2]
