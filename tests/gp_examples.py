"""Random inputs and training data for the tests of gp."""

import numpy as np

from joulecast.gp.hyperparameters import HyperPrior
from joulecast.gp.inputs import Inputs, TrainingData

BASIS_SIZE, AXES, OFFSET_SD = 3, 5, 0.2


def draw_inputs(rng, size, shared_axes=2, labels=3):
    return Inputs(
        rng.uniform(0.5, 2.0, (size, BASIS_SIZE)),
        rng.integers(0, labels, size),
        9.0 + rng.normal(size=(size, AXES)),
        rng.normal(size=(size, shared_axes)),
    )


def draw_training_data(rng, inputs, count):
    """Return observations of some single inputs, then of sums of a few."""
    size = inputs.size
    counts = (rng.random((count, size)) < 0.2) * rng.integers(1, 4, (count, size)).astype(float)
    counts[:size] = np.eye(size)[:count]
    counts[:, 0] += counts.sum(axis=1) == 0
    values = counts @ inputs.basis.sum(axis=1) * np.exp(0.1 * rng.normal(size=count))
    discrepancies = np.zeros((count, int(inputs.labels.max()) + 1))
    discrepancies[size:] = 0.1 * rng.random(discrepancies[size:].shape)
    units = 0.1 * (rng.random((count, 2)) < 0.3)
    return TrainingData(counts, values, np.full(count, 1e-4), discrepancies, units)


def make_hyperprior(inputs):
    size = BASIS_SIZE + 4 + AXES + inputs.shared_points.shape[1]
    return HyperPrior(np.full(size, 0.3), np.full(size, 0.7), OFFSET_SD)


def draw_theta(rng, prior):
    return 0.3 * rng.normal(size=len(prior.medians)) - 1.0
