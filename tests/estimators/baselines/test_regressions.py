"""Test regressions of runtime and power."""

import random
from dataclasses import replace

from joulecast.estimators.baselines.neuralpower import NeuralPowerEstimator
from joulecast.families import draw_family
from joulecast.testing.estimators import SETUP, draw_networks


def test_energies_and_durations_are_positive_whatever_the_noise(ideal):
    seen, _ = ideal.profile()
    rng = random.Random(1)
    noisy = [replace(one, energy_j=one.energy_j * rng.lognormvariate(0, 2)) for one in seen]
    fitted = NeuralPowerEstimator().fit(noisy)
    nets = [draw_family("lenet5", rng.randint) for _ in range(20)]
    found = fitted.predict(nets, [SETUP] * len(nets), per_layer=True)
    assert (found.energy_j > 0).all() and (found.duration_s > 0).all()
    assert all(row.energy_j >= 0 for rows in found.layers for row in rows)


def test_noise_widens_the_interval(ideal):
    seen, fitted = ideal.profile()
    rng = random.Random(2)
    noisy = [replace(one, energy_j=one.energy_j * rng.lognormvariate(0, 0.5)) for one in seen]
    nets = draw_networks(5)
    exact, uncertain = (
        f.predict(nets, [SETUP] * len(nets)) for f in (fitted, NeuralPowerEstimator().fit(noisy))
    )
    shares = [one.energy_sd_j / one.energy_j for one in (exact, uncertain)]
    assert (shares[1] > shares[0]).all()
