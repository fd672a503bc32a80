"""Energies of pieces that run alone."""

from __future__ import annotations

import numpy as np

from additive_examples import SETUP
from joulecast.estimators.additive.layers import set_up_layer
from joulecast.estimators.additive.predict import predict_layer_energies
from joulecast.variants import read_isolated_part, resize_part, width_names


def test_energies_agree_with_what_was_measured(observations, model):
    found = [(read_isolated_part(one.trial), one) for one in observations]
    hidden = [(part, one) for part, one in found if part and part.role == "hidden"]
    measured_j = np.array([one.energy_j / one.trial.execution.copies for _, one in hidden])
    layers = [set_up_layer(part, SETUP) for part, _ in hidden]
    means_j, sds_j = predict_layer_energies(model, layers)
    assert len(means_j) > 10
    assert np.median(np.abs(means_j / measured_j - 1)) < 0.02
    assert (sds_j > 0).all()


def test_far_from_everything_measured_less_is_known(observations, model):
    part = next(
        part
        for one in observations
        if (part := read_isolated_part(one.trial)) and len(width_names(part)) == 2
    )
    far = resize_part(part, (20_000, 20_000))
    layers = [set_up_layer(one, SETUP) for one in (part, far)]
    (near_j, far_j), (near_sd_j, far_sd_j) = predict_layer_energies(model, layers)
    assert far_j > near_j and far_sd_j / far_j > near_sd_j / near_j
