"""The fit that several simulated devices share."""

import numpy as np

from additive_examples import observe_parts
from joulecast.estimators.additive.data_sheets import make_sheet_encoder
from joulecast.estimators.additive.fit import encode_decomposed
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.estimators.additive.predict import predict_durations
from joulecast.simulation import make_simulated_device
from shared_model_examples import SEEDS, describe_chip, draw_networks, make_shared_model


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


def test_only_devices_with_energies_teach_powers():
    shared = make_shared_model()
    assert 0 < shared.power.observations.size <= shared.duration.observations.size
