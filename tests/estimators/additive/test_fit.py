"""Fits of the model of a device, and of what several devices share."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from additive_examples import (
    SETUP,
    draw_networks,
    observe_blocks,
    observe_on_unit,
    observe_step,
    predict,
    true_energies,
)
from joulecast.estimators.additive.encode import define_durations, define_powers
from joulecast.estimators.additive.estimator import start_from_sheet
from joulecast.estimators.additive.fit import (
    SharedModel,
    encode_decomposed,
    find_powers,
    fit_model,
    load_shared_model,
    make_sheet_encoder,
    observe_durations,
)
from joulecast.estimators.additive.layers import count_layers, split_layers
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.estimators.additive.predict import predict_durations
from joulecast.gp.lognormal import log_variance
from joulecast.records import Trial
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import MissingError
from shared_model_examples import (
    LEFT_OUT,
    SEEDS,
    describe_chip,
    make_shared_model,
    observe_device,
)


def test_probes_alone_are_too_little(device):
    probes = observe_blocks(device, draw_networks(2), energy=False)
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


@pytest.fixture(scope="module")
def unknown():
    return make_simulated_device(LEFT_OUT, noise=0.0)


@pytest.fixture(scope="module")
def sheet(unknown):
    return describe_chip(unknown.chip)


def start(sheet, observations=()):
    return start_from_sheet(sheet, observations, make_shared_model())


def find_log_sds(found):
    pairs = zip(found.energy_j, found.energy_sd_j**2, strict=True)
    return np.sqrt([log_variance(*one) for one in pairs])


def test_left_out_device_is_within_its_interval(unknown, sheet):
    networks = draw_networks(10, seed=5)
    found = predict(start(sheet), networks)
    errors = np.log(found.energy_j / true_energies(unknown, networks)) / find_log_sds(found)
    assert np.mean(np.abs(errors) < 1.96) >= 0.9


def test_durations_and_then_energies_each_narrow_the_estimate(unknown, sheet):
    network = draw_networks(1, seed=6)
    metered = observe_blocks(unknown, network)
    timed = [replace(one, energy_j=None, energy_sd_j=None) for one in metered]
    sds = [find_log_sds(predict(start(sheet, own), network))[0] for own in ((), timed, metered)]
    assert sds[0] > sds[1] > sds[2]


def test_own_observations_overrule_the_data_sheet(unknown, sheet):
    """The device takes three times as long as its data sheet suggests, at half the power."""
    odd = [
        replace(
            one,
            duration_s=3.0 * one.duration_s,
            energy_j=one.energy_j and 1.5 * one.energy_j,
            issue_s=None,
        )
        for one in observe_blocks(unknown, draw_networks(3, seed=7))
    ]
    networks = draw_networks(5, seed=8)
    # Graphs: the host takes no part.
    graphs = replace(SETUP, cuda_graphs=True)
    before, after = (predict(start(sheet, own), networks, graphs) for own in ((), odd[:12]))
    alone = predict(start(sheet, observe_blocks(unknown, networks)), networks, graphs)
    truth_s = 3.0 * alone.duration_s
    errors = [np.abs(np.log(one.duration_s / truth_s)).mean() for one in (before, after)]
    assert errors[0] > math.log(2.0) and errors[1] < 0.25


def test_shared_model_survives_json(sheet):
    again = SharedModel.from_dict(json.loads(json.dumps(make_shared_model().to_dict())))
    networks = draw_networks(2, seed=5)
    one = predict(start(sheet), networks)
    two = predict(start_from_sheet(sheet, (), again), networks)
    assert one.energy_j == pytest.approx(two.energy_j, rel=1e-6) and again.notice == "a notice"


def test_shipped_model_loads_and_names_its_devices():
    assert "NVIDIA H200 SXM 141 GB" in load_shared_model().devices


def test_notes_say_what_estimates_rest_on(unknown, sheet):
    network = draw_networks(1, seed=6)
    nothing = start(sheet).predict(network, [SETUP], per_layer=True).notes[0]
    some = start(sheet, observe_device(unknown, 1)).predict(network, [SETUP], per_layer=True)
    assert any("Nothing was measured" in one for one in nothing)
    assert any("observations of this device" in one for one in some.notes[0])


def test_every_device_is_fitted_and_told_apart():
    shared = make_shared_model()
    assert len(shared.devices) == len(SEEDS)
    for seed in SEEDS:
        device = make_simulated_device(seed, noise=0.0)
        rows = decompose_observations(observe_blocks(device, draw_networks(2, seed=1)))
        encoder = make_sheet_encoder(describe_chip(device.chip))
        sums = encode_decomposed(encoder, rows)
        found_s = predict_durations(encoder, shared.duration, sums).total
        errors = np.abs(np.log(found_s / [one.duration_s for one in rows]))
        assert np.median(errors) < 0.05
