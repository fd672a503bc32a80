"""The prior mean, its derivatives, and energies as a second use of the process."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums.inputs import LogInputs, LogObservations, LogSums
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums
from joulecast.gp.logsums.prior import coefficient_gradient, elasticities, prior_log_mean
from joulecast.gp.logsums.totals import linearise_totals, predict_combinations, predict_inputs
from logsums_examples import draw_inputs, make_process

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


def test_elasticity_is_the_derivative_by_durations():
    """Of a mean of joules with a cap at the power limit, which rises with the duration."""
    rng = np.random.default_rng(2)
    flops, size_bytes = np.exp(rng.normal(25.0, 2.0, 40)), np.exp(rng.normal(18.0, 1.0, 40))
    durations_s = flops / 3e14 + size_bytes / 3e12
    coefficients = np.array([2e-12, 1e-10, 200.0])
    inputs = make_energy_inputs(flops, size_bytes, durations_s)
    up, down = (
        prior_log_mean(make_energy_inputs(flops, size_bytes, durations_s * factor), coefficients)
        for factor in (np.exp(1e-5), np.exp(-1e-5))
    )
    slopes = elasticities(inputs, coefficients, 2)
    assert slopes == pytest.approx((up - down) / 2e-5, abs=1e-6)
    assert ((slopes > 0.0) & (slopes <= 1.0)).all()


def test_energies_carry_the_uncertainty_of_durations():
    """An energy that is all static power is as uncertain as its duration; one of FLOPs is not."""
    rng = np.random.default_rng(3)
    times = draw_inputs(rng, 2, first_identity=50)
    process = make_process()
    trained = draw_inputs(rng, 10)
    sums = LogSums.of_single_inputs(10)
    mean = prior_log_mean(trained, np.exp(process.prior.means[:3]))
    observations = LogObservations(sums, mean, np.full(10, 1e-4))
    time_fit = FittedLogSums(process, process.prior.means, trained, observations)
    time_posterior = condition_logsums(time_fit)
    durations = predict_inputs(time_posterior, times)
    flops = np.array([1e3, 1e15])
    energies = make_energy_inputs(flops, np.array([1e3, 1e3]), np.exp(durations.log_mean))
    energies = replace(energies, log_caps=None)
    slopes = elasticities(energies, np.array([2e-12, 1e-10, 200.0]), 2)
    each = WeightedSums(2, np.arange(2), np.arange(2), slopes)
    _, cov = predict_combinations(time_posterior, times, each)
    assert cov[0, 0] == pytest.approx(durations.log_variance[0], rel=1e-3)
    assert cov[1, 1] < 0.1 * durations.log_variance[1]
    total = linearise_totals(WeightedSums(1, np.zeros(2, int), np.arange(2), np.ones(2)), durations)
    assert total.weight.sum() == pytest.approx(1.0)
