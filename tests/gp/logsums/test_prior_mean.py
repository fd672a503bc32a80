"""The prior mean, its derivatives, and energies as a second use of the process."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.logsums.inputs import LogInputs
from joulecast.gp.logsums.prior import coefficient_gradient, prior_log_mean
from logsums_examples import draw_inputs

LIMIT_W = 700.0


@pytest.mark.parametrize("caps", [False, True])
def test_gradient_equals_finite_differences(caps):
    inputs = draw_inputs(np.random.default_rng(0), 20, caps=caps)
    coefficients = np.array([1e-3, 2e-3, 5e-4])
    gradient = coefficient_gradient(inputs, coefficients)
    for at in range(3):
        step = np.exp(1e-6 * (np.arange(3) == at))
        up, down = coefficients * step, coefficients / step
        difference = prior_log_mean(inputs, up) - prior_log_mean(inputs, down)
        assert gradient[:, at] == pytest.approx(difference / 2e-6, abs=1e-6)


@pytest.mark.parametrize("caps", [False, True])
def test_basis_functions_of_the_logarithm_add_to_it(caps):
    rng = np.random.default_rng(3)
    plain = draw_inputs(rng, 20, caps=caps)
    inputs = replace(plain, log_basis=rng.normal(size=(20, 2)))
    coefficients = np.array([1e-3, 2e-3, 5e-4, 0.7, 0.2])
    added = prior_log_mean(inputs, coefficients) - prior_log_mean(plain, coefficients)
    assert added == pytest.approx(inputs.log_basis @ coefficients[3:])
    gradient = coefficient_gradient(inputs, coefficients)
    for at in range(5):
        step = np.exp(1e-6 * (np.arange(5) == at))
        difference = prior_log_mean(inputs, coefficients * step)
        difference -= prior_log_mean(inputs, coefficients / step)
        assert gradient[:, at] == pytest.approx(difference / 2e-6, abs=1e-6)


def test_caps_are_soft_minima():
    inputs = draw_inputs(np.random.default_rng(1), 50)
    coefficients = np.array([1e-3, 2e-3, 5e-4])
    free = prior_log_mean(inputs, coefficients)
    for margin, expected in ((3.0, 0.0), (-3.0, -3.0)):
        capped = prior_log_mean(replace(inputs, log_caps=free + margin), coefficients)
        assert capped - free == pytest.approx(np.full(50, expected), abs=1e-6)
    at_cap = prior_log_mean(replace(inputs, log_caps=free), coefficients)
    assert ((at_cap < free) & (at_cap > free - 0.1)).all()


def make_energy_inputs(flops, size_bytes, durations_s):
    """Return inputs of an energy process: FLOPs, bytes and seconds, with achieved rates."""
    size = len(flops)
    rates = np.column_stack([np.log(flops / durations_s), np.log(size_bytes / durations_s)])
    return LogInputs(
        np.column_stack([flops, size_bytes, durations_s]),
        rates,
        np.zeros((size, 2), int),
        np.zeros(size, int),
        np.arange(size),
        np.log(LIMIT_W * durations_s),
    )
