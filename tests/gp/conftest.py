"""A fitted process and sums to predict."""

import numpy as np
import pytest

from gp_examples import draw_inputs, draw_training_data, make_hyperprior
from joulecast.gp.fitting import fit_process
from joulecast.gp.inputs import Inputs
from joulecast.gp.weighted_sums import WeightedSums


@pytest.fixture(scope="session")
def fitted():
    """A process with four draws besides its mode."""
    rng = np.random.default_rng(1)
    inputs = draw_inputs(rng, 10)
    data = draw_training_data(rng, inputs, 14)
    return fit_process(inputs, data, make_hyperprior(inputs), draw_count=4, discrepancy_sd=0.1)


@pytest.fixture
def new_inputs():
    """Inputs of which the first four are training inputs."""
    inputs = draw_inputs(np.random.default_rng(3), 40, labels=5)
    index = np.arange(inputs.size)
    training_index = np.where(index < 4, index, -1)
    arrays = inputs.basis, inputs.labels, inputs.points, inputs.shared_points
    return Inputs(*arrays, training_index)


@pytest.fixture
def sums(new_inputs):
    """Thirty sums over the new inputs; the last one is empty."""
    rng, size = np.random.default_rng(2), 30
    entries = [sorted(rng.choice(new_inputs.size, 1 + k % 6, False)) for k in range(size - 1)]
    row = np.repeat(np.arange(size - 1), [len(one) for one in entries])
    weight = rng.integers(1, 5, len(row)).astype(float)
    return WeightedSums(size, row, np.concatenate(entries), weight)
