"""A device that starts from its data sheet: honest, narrowed by own observations, overruled."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from additive_examples import SETUP, draw_networks, observe_parts, predict, true_energies
from joulecast.estimators.additive.estimator import start_from_sheet
from joulecast.estimators.additive.fit import (
    SharedModel,
    encode_decomposed,
    load_shared_model,
    make_sheet_encoder,
)
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.estimators.additive.predict import predict_durations
from joulecast.gp.lognormal import log_variance
from joulecast.simulation import make_simulated_device
from shared_model_examples import (
    LEFT_OUT,
    SEEDS,
    describe_chip,
    make_shared_model,
    observe_device,
)


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
    metered = observe_parts(unknown, network)
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
        for one in observe_parts(unknown, draw_networks(3, seed=7))
    ]
    networks = draw_networks(5, seed=8)
    # Graphs: the host takes no part.
    graphs = replace(SETUP, cuda_graphs=True)
    before, after = (predict(start(sheet, own), networks, graphs) for own in ((), odd[:12]))
    alone = predict(start(sheet, observe_parts(unknown, networks)), networks, graphs)
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
        rows = decompose_observations(observe_parts(device, draw_networks(2, seed=1)))
        encoder = make_sheet_encoder(describe_chip(device.chip))
        sums = encode_decomposed(encoder, rows)
        found_s = predict_durations(encoder, shared.duration, sums).total
        errors = np.abs(np.log(found_s / [one.duration_s for one in rows]))
        assert np.median(errors) < 0.05
