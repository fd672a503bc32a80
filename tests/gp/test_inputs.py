"""Inputs and training data as arrays."""

from dataclasses import replace

import numpy as np
import pytest

from gp_examples import draw_inputs, draw_training_data


def test_taking_inputs_keeps_all_their_arrays():
    inputs = draw_inputs(np.random.default_rng(0), 6)
    index = np.array([4, 1])
    assert inputs.take(index).training_index is None
    taken = replace(inputs, training_index=np.arange(6)).take(index)
    assert taken.size == 2
    assert taken.training_index.tolist() == [4, 1]
    for name in ("basis", "labels", "points", "shared_points"):
        assert (getattr(taken, name) == getattr(inputs, name)[index]).all()


def test_unit_effects_scale_with_the_mean_and_discrepancies_do_not():
    rng = np.random.default_rng(1)
    data = draw_training_data(rng, draw_inputs(rng, 5), 9)
    none, some = (data.correlated_error_covariance(ratio * np.ones(9)) for ratio in (0.0, 2.0))
    assert none == pytest.approx(data.discrepancy_loadings @ data.discrepancy_loadings.T)
    assert some - none == pytest.approx(4.0 * data.unit_loadings @ data.unit_loadings.T)
