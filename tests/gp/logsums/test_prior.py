"""The prior agrees with its definition, pair by pair."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums.inputs import ALL_INPUTS, NO_GROUP, LogSums
from joulecast.gp.logsums.prior import (
    KernelTerm,
    LogSumProcess,
    coefficient_gradient,
    multiply_structures,
    prior_log_mean,
)
from logsums_examples import draw_inputs, draw_sums, make_process, to_matrix


def evaluate_pair(prior, left, right, i, j):
    total = prior.nugget_sd**2 * (left.identities[i] == right.identities[j])
    for term in prior.terms:
        if term.group != ALL_INPUTS:
            group = left.groups[i, term.group]
            if group == NO_GROUP or group != right.groups[j, term.group]:
                continue
        axes = list(term.axes)
        difference = (left.points[i, axes] - right.points[j, axes]) / term.length_scales
        d = np.sqrt(5.0 * (difference**2).sum())
        kernel = (1.0 + d + d**2 / 3.0) * np.exp(-d)
        same = left.regimes[i] == right.regimes[j]
        total += kernel * (term.shared_sd**2 + term.regime_sd**2 * same)
    return total


@pytest.fixture(params=[False, True])
def example(request):
    rng = np.random.default_rng(0)
    process = make_process(leaves_out=request.param)
    prior = process.unpack(process.theta_prior[0] + 0.1)
    return prior, draw_inputs(rng, 17), draw_inputs(rng, 11, first_identity=10)


def test_covariance_equals_its_definition(example):
    prior, left, right = example
    cov = prior.covariance(left, right)
    expected = [
        [evaluate_pair(prior, left, right, i, j) for j in range(right.size)]
        for i in range(left.size)
    ]
    assert cov == pytest.approx(np.array(expected), abs=1e-9)
    own = np.diag(prior.covariance(left, left))
    assert own == pytest.approx(prior.variance(left), abs=1e-6)
    vector = np.random.default_rng(3).normal(size=right.size)
    assert prior.multiply_covariance(left, right, vector) == pytest.approx(cov @ vector, abs=1e-12)


def test_variance_of_sums_is_the_diagonal_of_their_covariance(example):
    prior, left, _ = example
    sums = draw_sums(np.random.default_rng(1), left.size, 4, 8).counts
    matrix = to_matrix(sums, left.size)
    cov = matrix @ prior.covariance(left, left) @ matrix.T
    assert prior.sum_variance(left, sums) == pytest.approx(np.diag(cov), rel=1e-6)
    empty = WeightedSums(1, np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    assert prior.sum_variance(left, empty).tolist() == [0.0]


def test_structures_that_only_one_side_has_do_not_matter():
    one = WeightedSums(2, np.array([0, 0, 1]), np.array([5, 7, 9]), np.array([0.5, 0.25, 1.0]))
    two = WeightedSums(3, np.array([0, 2, 2]), np.array([7, 5, 8]), np.array([2.0, 4.0, 1.0]))
    left, right = (LogSums(each, each, np.arange(each.size)) for each in (one, two))
    place, products, is_same = multiply_structures(left, right)
    assert [axis.ravel().tolist() for axis in place] == [[0, 1], [0, 2]]
    assert products.tolist() == [[0.5, 2.0], [0.0, 0.0]]
    assert is_same.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_discrepancies_are_shared_by_structure_and_by_sum(example):
    prior, left, _ = example
    sums = draw_sums(np.random.default_rng(2), left.size, 3, 7)
    cov = prior.discrepancy_covariance(sums, sums)
    assert np.diag(cov) == pytest.approx(prior.discrepancy_variance(sums))
    assert not cov[:3].any()
    assert cov[3, 6] == pytest.approx(prior.structure_sd**2)
    assert cov[3, 4] == 0.0
    # The last two are the same sum.
    assert cov[-1, -2] == pytest.approx(prior.structure_sd**2 + prior.sum_sd**2)


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
    means, sds = process.theta_prior
    prior = process.unpack(means)
    assert prior.coefficients == pytest.approx([2.0])
    found = [(one.shared_sd, one.regime_sd, *one.length_scales) for one in prior.terms]
    assert found == [pytest.approx((0.3, 0.0)), pytest.approx((0.0, 0.2, 3.0, 3.0))]
    assert prior.noise_sd == pytest.approx(0.01)
    assert sds.tolist() == [1.0, 0.5, 0.4, 0.6, 0.6, 0.5, 0.5, 0.5, 0.2]
