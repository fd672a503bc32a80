"""The prior covariance agrees with its definition, pair by pair."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums.prior import (
    coefficient_gradient,
    discrepancy_covariance,
    discrepancy_variance,
    find_input_variances,
    log_prior_covariance,
    log_prior_variance,
    multiply_prior_covariance,
    prior_log_mean,
    structure_products,
)
from joulecast.gp.logsums.process import ALL_INPUTS, NO_GROUP, KernelTerm, LogSumProcess
from logsums_examples import draw_inputs, draw_sums, make_process, to_matrix


def evaluate_pair(process, hyper, left, right, i, j):
    total = hyper.nugget_sd**2 * (left.identities[i] == right.identities[j])
    for term, own in zip(process.terms, hyper.terms, strict=True):
        if term.group != ALL_INPUTS:
            group = left.groups[i, term.group]
            if group == NO_GROUP or group != right.groups[j, term.group]:
                continue
        axes = list(term.axes)
        difference = (left.points[i, axes] - right.points[j, axes]) / own.length_scales
        d = np.sqrt(5.0 * (difference**2).sum())
        kernel = (1.0 + d + d**2 / 3.0) * np.exp(-d)
        same = left.regimes[i] == right.regimes[j]
        total += kernel * (own.shared_sd**2 + own.regime_sd**2 * same)
    return total


@pytest.fixture(params=[False, True])
def example(request):
    rng = np.random.default_rng(0)
    process = make_process(leaves_out=request.param)
    hyper = process.unpack(process.prior.means + 0.1)
    return process, hyper, draw_inputs(rng, 17), draw_inputs(rng, 11, first_identity=10)


def test_covariance_equals_its_definition(example):
    process, hyper, left, right = example
    cov = log_prior_covariance(process, hyper, left, right)
    expected = [
        [evaluate_pair(process, hyper, left, right, i, j) for j in range(right.size)]
        for i in range(left.size)
    ]
    assert cov == pytest.approx(np.array(expected), abs=1e-9)
    assert np.diag(log_prior_covariance(process, hyper, left, left)) == pytest.approx(
        find_input_variances(process, hyper, left), abs=1e-6
    )


def test_product_equals_that_with_the_whole_covariance(example):
    process, hyper, left, right = example
    vector = np.random.default_rng(3).normal(size=right.size)
    cov = log_prior_covariance(process, hyper, left, right)
    product = multiply_prior_covariance(process, hyper, left, right, vector)
    assert product == pytest.approx(cov @ vector, abs=1e-12)


def test_structures_that_only_one_side_has_do_not_matter():
    left = WeightedSums(2, np.array([0, 0, 1]), np.array([5, 7, 9]), np.array([0.5, 0.25, 1.0]))
    right = WeightedSums(3, np.array([0, 2, 2]), np.array([7, 5, 8]), np.array([2.0, 4.0, 1.0]))
    rows, columns = np.array([0, 1]), np.array([0, 2])
    products = structure_products(left, right, rows, columns)
    assert products.tolist() == [[0.5, 2.0], [0.0, 0.0]]


def test_variance_of_sums_is_the_diagonal_of_their_covariance(example):
    process, hyper, left, _ = example
    sums = draw_sums(np.random.default_rng(1), left.size, 4, 8).counts
    matrix = to_matrix(sums, left.size)
    cov = matrix @ log_prior_covariance(process, hyper, left, left) @ matrix.T
    found = log_prior_variance(process, hyper, left, sums)
    assert found == pytest.approx(np.diag(cov), rel=1e-6)
    empty = WeightedSums(1, np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    assert log_prior_variance(process, hyper, left, empty).tolist() == [0.0]


def test_discrepancies_are_shared_by_structure_and_by_sum(example):
    _, hyper, left, _ = example
    sums = draw_sums(np.random.default_rng(2), left.size, 3, 7)
    cov = discrepancy_covariance(hyper, sums, sums)
    assert np.diag(cov) == pytest.approx(discrepancy_variance(hyper, sums))
    assert not cov[:3].any()
    assert cov[3, 6] == pytest.approx(hyper.structure_sd**2)
    assert cov[3, 4] == 0.0
    # The last two are the same sum.
    assert cov[-1, -2] == pytest.approx(hyper.structure_sd**2 + hyper.sum_sd**2)


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


def test_theta_lists_hyper_parameters_in_order():
    terms = (
        KernelTerm(ALL_INPUTS, shared_sd=(0.3, 0.5)),
        KernelTerm(0, (0, 2), regime_sd=(0.2, 0.4), length_scale=(3.0, 0.6)),
    )
    process = LogSumProcess(((2.0, 1.0),), terms, noise_sd=(0.01, 0.2))
    hyper = process.unpack(process.prior.means)
    assert hyper.coefficients == pytest.approx([2.0])
    assert hyper.terms[0].shared_sd == pytest.approx(0.3)
    assert hyper.terms[0].regime_sd == 0.0
    assert hyper.terms[1].shared_sd == 0.0
    assert hyper.terms[1].regime_sd == pytest.approx(0.2)
    assert hyper.terms[1].length_scales == pytest.approx([3.0, 3.0])
    assert hyper.noise_sd == pytest.approx(0.01)
    assert process.prior.sds.tolist() == [1.0, 0.5, 0.4, 0.6, 0.6, 0.5, 0.5, 0.5, 0.2]


def test_prior_density_has_its_gradient():
    prior = make_process().prior
    theta = prior.means + 0.2
    value, gradient = prior.negative_log_density(theta)
    step = np.zeros(len(theta))
    step[3] = 1e-6
    difference = prior.negative_log_density(theta + step)[0] - value
    assert gradient[3] == pytest.approx(difference / 1e-6, rel=1e-4)
