"""Gaussian processes over log values that are observed through sums of their exponentials."""

import base64
import json
import zlib
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums import fit as outliers
from joulecast.gp.logsums import selection
from joulecast.gp.logsums.fit import SumObjective, discount_outliers, fit_logsums, select_subset
from joulecast.gp.logsums.inputs import (
    ALL_INPUTS,
    NO_GROUP,
    LogInputs,
    LogObservations,
    LogSums,
    linearise,
    log_sums,
)
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    condition_logsums,
    correct_row_weights,
    expected_variance_reduction,
    explain_inputs,
    linearise_observations,
    posterior_elasticities,
    predict_log_means,
    predict_log_totals,
)
from joulecast.gp.logsums.prior import (
    KernelTerm,
    LogSumProcess,
    coefficient_gradient,
    prior_log_mean,
)
from joulecast.gp.logsums.selection import extend_fitted, keep_linearisation, select_rows
from joulecast.gp.logsums.stored import PackedArray, restore_logsums, store_logsums
from joulecast.system.files import MOST_UNPACKED_BYTES

BASIS_SIZE, AXES, STRUCTURES = 3, 2, 3


def make_process(coefficients=(1e-3, 2e-3, 5e-4), leaves_out=False, **sds):
    """Return a process; with leaves_out, one with terms that leave some of the inputs out."""
    axes = tuple(range(AXES))
    terms = (
        KernelTerm(ALL_INPUTS, shared_sd=(0.3, 0.5)),
        KernelTerm(0, regime_sd=(0.2, 0.5)),
        KernelTerm(1, shared_sd=(0.2, 0.5), regime_sd=(0.15, 0.5)),
        KernelTerm(0, axes, shared_sd=(0.4, 0.5), regime_sd=(0.3, 0.5)),
        KernelTerm(1, axes[:1], regime_sd=(0.2, 0.5), length_scale=(1.0, 0.5)),
    )
    if leaves_out:
        terms += (
            KernelTerm(2, shared_sd=(0.25, 0.5)),
            KernelTerm(2, axes, shared_sd=(0.2, 0.5), regime_sd=(0.1, 0.5)),
        )
    return LogSumProcess(tuple((one, 0.5) for one in coefficients), terms, **sds)


def draw_inputs(rng, size, first_identity=0, caps=False):
    """Return inputs of two classes, each of two kinds, in two regimes.

    Terms of the third group leave out one of the kinds.
    """
    kinds = rng.integers(0, 4, size)
    basis = rng.uniform(0.1, 2.0, (size, BASIS_SIZE))
    return LogInputs(
        basis,
        5.0 + 2.0 * rng.normal(size=(size, AXES)),
        np.column_stack([kinds // 2, kinds, np.where(kinds == 1, NO_GROUP, kinds % 2)]),
        rng.integers(0, 2, size),
        first_identity + np.arange(size),
        np.log(basis.sum(axis=1) * 2e-3) if caps else None,
    )


def draw_sums(rng, inputs, singles, several):
    """Return sums of single inputs, then of two to four with shares of structures.

    The last two are the same sum.
    """
    entries = [[int(one)] for one in rng.permutation(inputs)[:singles]]
    entries += [sorted(rng.choice(inputs, rng.integers(2, 5), False)) for _ in range(several)]
    counts = [rng.integers(1, 4, len(one)).astype(float) for one in entries]
    size, identities = singles + several, np.arange(singles + several)
    if several > 1:
        entries[-1], counts[-1], identities[-1] = entries[-2], counts[-2], identities[-2]
    row = np.repeat(np.arange(size), [len(one) for one in entries])
    labels = identities[singles:] % STRUCTURES
    structures = WeightedSums(size, np.arange(singles, size), labels, np.ones(several))
    counts = WeightedSums(size, row, np.concatenate(entries), np.concatenate(counts))
    return LogSums(counts, structures, identities)


def draw_values(rng, process, inputs):
    """Return log values of inputs, drawn from the prior at its median."""
    prior = process.unpack(process.theta_prior[0])
    noise = rng.multivariate_normal(np.zeros(inputs.size), prior.covariance(inputs, inputs))
    return prior.mean(inputs) + noise


def draw_fitted(rng, size=30, singles=20, several=12, **kwargs):
    """Return a process at the median of its prior, observed through sums, and the log values.

    Sums are linearised around the prior mean.
    """
    process, inputs = make_process(**kwargs), draw_inputs(rng, size)
    sums, values = draw_sums(rng, size, singles, several), draw_values(rng, process, inputs)
    log_values = np.log(sums.counts.total(np.exp(values))) + 0.02 * rng.normal(size=sums.size)
    strata = np.arange(sums.size) % 3
    observations = LogObservations(sums, log_values, np.full(sums.size, 1e-5), strata)
    return FittedLogSums.start(process, process.theta_prior[0], inputs, observations), values


def to_matrix(sums, inputs):
    """Return weighted sums as a dense matrix, sums x inputs."""
    matrix = np.zeros((sums.size, inputs))
    matrix[sums.row, sums.column] = sums.weight
    return matrix


def test_taken_sums_are_rows_of_the_matrix():
    sums = draw_sums(np.random.default_rng(1), 10, 4, 5)
    index = np.array([7, 0, 5, 5])
    taken = sums.take(index)
    assert (to_matrix(taken.counts, 10) == to_matrix(sums.counts, 10)[index]).all()
    assert (to_matrix(taken.structures, 9) == to_matrix(sums.structures, 9)[index]).all()
    used, narrowed = taken.narrow()
    assert (to_matrix(narrowed.counts, len(used)) == to_matrix(taken.counts, 10)[:, used]).all()
    both = to_matrix(sums.append(taken).counts, 10)
    assert (both == to_matrix(sums.counts, 10)[[*range(9), *index]]).all()


def test_narrowed_observations_are_over_the_same_inputs():
    fitted, _ = draw_fitted(np.random.default_rng(2))
    rows = np.array([0, 3, 21, 22, 31])
    own = fitted.narrow(rows)
    # Identities of inputs are their places.
    place = own.inputs.identities
    for name in ("observations.sums.counts", "linear.weights"):
        one, two = (attrgetter(name)(each) for each in (own, fitted))
        expected = to_matrix(two, fitted.inputs.size)[np.ix_(rows, place)]
        assert (to_matrix(one, len(place)) == expected).all()
    assert (own.observations.log_values == fitted.observations.log_values[rows]).all()
    assert (np.diff(fitted.inputs.cells[1][place]) >= 0).all()


def test_appended_inputs_keep_what_both_have():
    rng = np.random.default_rng(5)
    one, two = draw_inputs(rng, 3, caps=True), draw_inputs(rng, 2, first_identity=3, caps=True)
    shifted = replace(one, log_basis=np.ones((3, 1)))
    both = shifted.append(replace(two, log_basis=np.zeros((2, 1))))
    assert both.log_basis[:, 0].tolist() == [1, 1, 1, 0, 0]
    assert both.take(np.array([0, 4])).log_basis[:, 0].tolist() == [1, 0]
    assert both.log_caps.tolist() == [*one.log_caps, *two.log_caps]
    assert shifted.append(two).log_basis is None


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


def scale_sds(process, factor):
    """Return the process with the standard deviations of all terms multiplied."""

    def scale(sd):
        return sd and (factor * sd[0], sd[1])

    terms = [
        replace(term, shared_sd=scale(term.shared_sd), regime_sd=scale(term.regime_sd))
        for term in process.terms
    ]
    return replace(process, terms=tuple(terms))


@pytest.mark.parametrize(("factor", "tolerance"), [(1.0, 0.3), (0.5, 0.2)])
def test_posterior_of_sums_agrees_with_importance_sampling(factor, tolerance):
    """Two inputs of which only the sum is known: the mean of one, by weighted draws.

    What is known of each alone is skewed, which a normal distribution cannot be: the standard
    deviation of the larger one is 25 % too small where that of the prior is 0.7, and 15 % at 0.35.
    """
    rng = np.random.default_rng(3)
    process = make_process(noise_sd=(0.05, 0.1), structure_sd=(1e-3, 0.1), sum_sd=(1e-3, 0.1))
    process = scale_sds(process, factor)
    inputs = draw_inputs(rng, 2)
    values = draw_values(rng, process, inputs)
    counts = WeightedSums(1, np.zeros(2, int), np.arange(2), np.array([1.0, 3.0]))
    observed = log_sums(counts, values) + 0.3
    data = LogObservations(LogSums.of_counts(counts), observed, np.zeros(1))
    fitted = FittedLogSums.start(process, process.theta_prior[0], inputs, data)
    found, _ = explain_inputs(condition_logsums(linearise_observations(fitted)), inputs)
    cov = fitted.prior.covariance(inputs, inputs)
    draws = rng.multivariate_normal(fitted.prior.mean(inputs), cov, 200_000)
    totals = np.log(np.exp(draws) @ counts.weight)
    weight = np.exp(-0.5 * ((totals - observed) / 0.05) ** 2)
    expected = weight @ draws / weight.sum()
    assert found.log_mean == pytest.approx(expected, abs=0.05)
    sd = np.sqrt(weight @ (draws - expected) ** 2 / weight.sum())
    assert np.sqrt(found.log_variance) == pytest.approx(sd, rel=tolerance)


@pytest.fixture(scope="module")
def fitted():
    return linearise_observations(draw_fitted(np.random.default_rng(4))[0])


def test_some_observations_condition_as_if_there_were_no_others(fitted):
    rows, new = np.array([0, 3, 5, 21, 30]), draw_inputs(np.random.default_rng(4), 10, 100)
    one = condition_logsums(replace(fitted, row_weights=None), rows)
    only = replace(
        fitted, observations=fitted.observations.take(rows), linear=fitted.linear.take(rows)
    )
    expected = predict_log_means(condition_logsums(only), new)
    assert predict_log_means(one, new) == pytest.approx(expected, abs=1e-12)


def test_row_weights_give_the_means_of_all_observations(fitted):
    new = draw_inputs(np.random.default_rng(5), 10, first_identity=100)
    posterior = condition_logsums(fitted)
    assert fitted.row_weights == pytest.approx(posterior.row_weights, rel=1e-6, abs=1e-8)
    exact, _ = explain_inputs(posterior, new)
    assert fitted.predict_mean(new) == pytest.approx(exact.log_mean, abs=1e-9)
    found, _ = explain_inputs(condition_logsums(fitted, np.arange(10)), new)
    assert found.log_mean == pytest.approx(exact.log_mean, abs=1e-9)
    assert (found.log_variance >= exact.log_variance - 1e-12).all()


def test_corrected_row_weights_solve_the_equations_of_their_rows(fitted):
    """From zeros, correcting all rows is solving all equations at once."""
    rows = np.arange(fitted.observations.size)
    for start, some in (
        (np.zeros(len(rows)), rows),
        (fitted.row_weights + np.where(rows < 8, 1.0, 0.0), rows[:8]),
    ):
        found = correct_row_weights(replace(fitted, row_weights=start), some)
        assert found.row_weights == pytest.approx(fitted.row_weights, rel=1e-6, abs=1e-8)


def test_covariances_of_observations_are_exact(fitted):
    weights = to_matrix(fitted.linear.weights, fitted.inputs.size)
    sums = fitted.observations.sums
    exact = weights @ fitted.prior.covariance(fitted.inputs, fitted.inputs) @ weights.T
    exact += fitted.prior.discrepancy_covariance(sums, sums)
    # As many on both sides, but others; 30 and 31 are the same sum.
    left, right = np.array([2, 20, 31]), np.array([0, 30, 25])
    found = fitted.narrow(left).covary_rows(fitted.narrow(right))
    assert found == pytest.approx(exact[np.ix_(left, right)], abs=1e-10)


def test_linearisation_has_value_and_slope_of_the_sum():
    counts, rng = draw_sums(np.random.default_rng(0), 10, 3, 6).counts, np.random.default_rng(1)
    values, step = rng.normal(size=10), 1e-6 * rng.normal(size=10)
    linear = linearise(counts, values)
    assert linear.evaluate(values) == pytest.approx(log_sums(counts, values))
    change = log_sums(counts, values + step) - log_sums(counts, values - step)
    assert 2.0 * linear.weights.total(step) == pytest.approx(change, rel=1e-5, abs=1e-12)
    assert linear.weights.sum_entries(linear.weights.weight) == pytest.approx(np.ones(counts.size))


def test_large_and_small_values_do_not_overflow():
    counts = WeightedSums(2, np.array([0, 0, 1]), np.arange(3), np.array([2.0, 1.0, 1.0]))
    found = log_sums(counts, np.array([1000.0, -1000.0, -2000.0]))
    assert found == pytest.approx([1000.0 + np.log(2.0), -2000.0])
    assert log_sums(WeightedSums(1, *np.zeros((2, 0), int), np.zeros(0)), np.zeros(1))[0] == -np.inf


@pytest.mark.parametrize("is_shared", [False, True])
def test_expectation_of_a_sum_agrees_with_monte_carlo(is_shared):
    """Independent deviations average out and raise the sum; a common one does not."""
    rng, size, sd = np.random.default_rng(3), 12, 0.3
    counts = WeightedSums(1, np.zeros(size, int), np.arange(size), rng.uniform(1.0, 3.0, size))
    values = rng.normal(size=size)
    weight = linearise(counts, values).weights.weight
    sum_variance = sd**2 * (1.0 if is_shared else (weight**2).sum())
    linear = linearise(counts, values, np.full(size, sd**2), np.array([sum_variance]))
    noise = sd * rng.normal(size=(100_000, 1 if is_shared else size))
    drawn = np.log(np.exp(values + noise) @ counts.weight)
    found, plain = linear.evaluate(values)[0], log_sums(counts, values)[0]
    assert found == pytest.approx(drawn.mean(), abs=0.004)
    assert found - plain == pytest.approx(0.0 if is_shared else 0.03, abs=0.015)
    assert np.sqrt(sum_variance) == pytest.approx(drawn.std(), rel=0.05)


def test_observed_sums_of_uncertain_inputs_are_predicted():
    """Of 190 inputs, 40 are observed alone, the others only in 30 blocks of 12."""
    rng, noise_sd, size = np.random.default_rng(0), 0.02, 190
    entries = [[one] for one in range(40)]
    entries += [sorted(rng.choice(np.arange(40, size), 12, False)) for _ in range(30)]
    row = np.repeat(np.arange(70), [len(one) for one in entries])
    weight = rng.integers(1, 4, len(row)).astype(float)
    counts = WeightedSums(70, row, np.concatenate(entries), weight)
    terms = (
        KernelTerm(ALL_INPUTS, shared_sd=(0.2, 0.5)),
        KernelTerm(0, (0, 1), shared_sd=(0.4, 0.5)),
    )
    process = LogSumProcess(((1e-3, 0.5),), terms, nugget_sd=(0.25, 0.5), noise_sd=(noise_sd, 0.1))
    inputs = LogInputs(
        np.exp(1.5 * rng.normal(size=(size, 1))),
        2.0 * rng.normal(size=(size, 2)),
        rng.integers(0, 5, (size, 1)),
        np.zeros(size, int),
        np.arange(size),
    )
    values = prior_log_mean(inputs, np.array([1e-3])) + 0.5 * rng.normal(size=size)
    log_values = log_sums(counts, values) + noise_sd * rng.normal(size=70)
    observations = LogObservations(LogSums.of_counts(counts), log_values, np.zeros(70))
    fitted = FittedLogSums.start(process, process.theta_prior[0], inputs, observations)
    posterior = condition_logsums(linearise_observations(fitted))
    found = predict_log_totals(posterior, inputs, observations.sums)
    assert found.log_mean == pytest.approx(log_values, abs=3.0 * noise_sd)
    # The inputs of blocks remain uncertain: only their sums are known.
    each, _ = explain_inputs(posterior, inputs)
    assert np.median(np.sqrt(each.log_variance[40:])) > 0.15
    assert np.sqrt(found.log_variance).max() < 1.5 * noise_sd


def single_inputs(size):
    return LogSums.of_counts(WeightedSums.of_single_inputs(size))


def add_observations(fitted, known):
    """Return the posterior given further observations of the same inputs."""
    observations = fitted.observations.append(known)
    parts = fitted.process, fitted.theta, fitted.inputs, observations
    return condition_logsums(linearise_observations(FittedLogSums.start(*parts)))


def test_single_inputs_reproduce_gaussian_process_regression():
    """By the textbook: m = μ + k·(K + σ²I)⁻¹·(y - μ), and likewise the variance."""
    rng = np.random.default_rng(0)
    fitted, _ = draw_fitted(rng, several=0)
    new = draw_inputs(rng, 15, first_identity=100)
    data, prior = fitted.observations, fitted.prior
    inputs = fitted.inputs.take(data.sums.counts.column)
    cov = prior.covariance(inputs, inputs) + np.diag(prior.noise_sd**2 + data.log_variance)
    cross = prior.covariance(new, inputs)
    residual = data.log_values - np.log(data.sums.counts.weight) - prior.mean(inputs)
    mean = prior.mean(new) + cross @ np.linalg.solve(cov, residual)
    expected = prior.covariance(new, new) - cross @ np.linalg.solve(cov, cross.T)
    posterior = condition_logsums(fitted)
    found, _ = explain_inputs(posterior, new)
    assert found.log_mean == pytest.approx(mean, abs=1e-9)
    assert found.log_variance == pytest.approx(np.diag(expected), abs=1e-9)
    joint = predict_log_totals(posterior, new, single_inputs(15), joint=True)
    assert joint.log_covariance == pytest.approx(expected, abs=1e-9)
    assert joint.log_mean == pytest.approx(mean, abs=1e-9)


def test_joint_covariance_and_chunks_agree(monkeypatch):
    rng = np.random.default_rng(4)
    fitted, _ = draw_fitted(rng)
    new, sums = draw_inputs(rng, 25, first_identity=20), draw_sums(rng, 25, 10, 20)
    posterior = condition_logsums(linearise_observations(fitted))
    joint = predict_log_totals(posterior, new, sums, joint=True)
    assert joint.log_covariance == pytest.approx(joint.log_covariance.T, abs=1e-12)
    assert np.linalg.eigvalsh(joint.log_covariance).min() > -1e-9
    assert np.diag(joint.log_covariance) == pytest.approx(joint.log_variance, rel=1e-6)
    monkeypatch.setattr("joulecast.gp.logsums.posterior._MAX_ENTRIES", 7)
    monkeypatch.setattr("joulecast.gp.logsums.posterior._INPUT_CHUNK", 4)
    chunked = predict_log_totals(posterior, new, sums)
    assert chunked.log_mean == pytest.approx(joint.log_mean, abs=1e-10)
    assert chunked.log_variance == pytest.approx(joint.log_variance, abs=1e-10)


def test_totals_agree_with_monte_carlo():
    """Mean and log variance of sums of correlated log-normals, by drawing the inputs."""
    rng = np.random.default_rng(6)
    fitted, _ = draw_fitted(rng)
    new = draw_inputs(rng, 12, first_identity=100)
    posterior = condition_logsums(linearise_observations(fitted))
    each = predict_log_totals(posterior, new, single_inputs(12), joint=True)
    values = np.exp(rng.multivariate_normal(each.log_mean, each.log_covariance, 100_000))
    row = np.repeat(np.arange(3), 4)
    counts = WeightedSums(3, row, np.arange(12), rng.integers(1, 5, 12).astype(float))
    drawn = values @ to_matrix(counts, 12).T
    found = predict_log_totals(posterior, new, LogSums.of_counts(counts))
    assert found.log_mean == pytest.approx(np.log(drawn).mean(axis=0), abs=0.03)
    assert found.log_variance == pytest.approx(np.log(drawn).var(axis=0), rel=0.15)


def test_discrepancy_of_a_structure_is_learnt():
    """Sums of structure 0 cost 10 % more than their inputs: so does another one of it."""
    rng = np.random.default_rng(8)
    fitted, values = draw_fitted(rng, size=12, singles=12, several=0, structure_sd=(0.1, 0.1))
    counts = WeightedSums(6, np.repeat(np.arange(6), 2), np.arange(12), np.ones(12))
    structures = WeightedSums(6, np.arange(6), np.zeros(6, int), np.ones(6))
    log_values = np.log(counts.total(np.exp(values))) + 0.1
    known = LogSums(counts, structures, 50 + np.arange(6))
    observed = LogObservations(known, log_values, np.full(6, 1e-6))
    posterior = add_observations(fitted, observed)
    one = WeightedSums(1, np.zeros(3, int), np.array([0, 4, 8]), np.ones(3))
    own, other = (
        LogSums(one, WeightedSums(1, np.zeros(1, int), np.array([at]), np.ones(1)), np.array([99]))
        for at in (0, 1)
    )
    plain, again, unseen = (
        predict_log_totals(posterior, fitted.inputs, sums)
        for sums in (LogSums.of_counts(one), own, other)
    )
    assert again.log_mean - plain.log_mean == pytest.approx(0.1, abs=0.03)
    discrepancy = posterior.predict_discrepancies(own)
    assert again.log_mean - plain.log_mean == pytest.approx(discrepancy, abs=1e-12)
    assert posterior.predict_discrepancies(LogSums.of_counts(one)) == 0.0
    assert unseen.log_mean == pytest.approx(plain.log_mean, abs=1e-12)
    assert unseen.log_variance > again.log_variance > plain.log_variance


def test_elasticities_follow_basis_and_points():
    """A basis function and a coordinate that both rise with a quantity."""
    rng = np.random.default_rng(10)
    fitted, _ = draw_fitted(rng)
    new, posterior = draw_inputs(rng, 12, first_identity=100), condition_logsums(fitted)

    def move(log_factor):
        basis, points = new.basis.copy(), new.points.copy()
        basis[:, 1] *= np.exp(log_factor)
        points[:, 0] += log_factor
        return replace(new, basis=basis, points=points)

    coarse = posterior_elasticities(posterior, move(-0.05), move(0.05), 0.1)
    fine = posterior_elasticities(posterior, move(-1e-4), move(1e-4), 2e-4)
    assert coarse == pytest.approx(fine, abs=0.02)
    terms = new.basis * fitted.prior.coefficients
    by_mean = terms[:, 1] / terms.sum(axis=1)
    assert np.abs(fine - by_mean).max() > 0.01


def test_caps_bind_the_prior_mean_alone():
    """Observations above a cap are believed; where there are none, no mean is far above it."""
    rng = np.random.default_rng(9)
    fitted, _ = draw_fitted(rng, several=0)
    caps, data = fitted.prior.mean(fitted.inputs) - 0.5, fitted.observations
    capped = replace(fitted, inputs=replace(fitted.inputs, log_caps=caps))
    found, _ = explain_inputs(condition_logsums(capped), capped.inputs)
    observed = data.log_values - np.log(data.sums.counts.weight)
    assert (observed > caps[data.sums.counts.column]).any()
    assert found.log_mean[data.sums.counts.column] == pytest.approx(observed, abs=0.06)
    few = capped.narrow(np.zeros(1, int))
    few.observations.log_variance[:] = 1e6
    assert (predict_log_means(condition_logsums(few), capped.inputs) < caps + 1e-3).all()


def test_reduction_is_what_observing_the_expected_value_achieves():
    """For single inputs it is exact: the variance does not depend on the value observed."""
    fitted, _ = draw_fitted(np.random.default_rng(0), size=30, singles=18, several=0)
    inputs, size = fitted.inputs, fitted.inputs.size
    posterior = condition_logsums(fitted)
    targets = candidates = single_inputs(size)
    found = expected_variance_reduction(posterior, inputs, targets, candidates)
    before = predict_log_totals(posterior, inputs, targets)
    for at in (0, 7, 29):
        one = candidates.take(np.array([at]))
        known = LogObservations(one, before.log_mean[[at]], np.zeros(1))
        after = predict_log_totals(add_observations(fitted, known), inputs, targets)
        expected = before.log_variance - after.log_variance
        assert found[:, at] == pytest.approx(expected, abs=1e-8)


@pytest.fixture(scope="module")
def large():
    return keep_linearisation(draw_fitted(np.random.default_rng(0), 400, 300, 60)[0])


@pytest.fixture
def few_are_many(monkeypatch):
    monkeypatch.setattr(selection, "MAX_EXACT_ROWS", 100)


@pytest.mark.parametrize("has_weights", [False, True])
def test_selected_observations_are_nearly_as_good_as_all(large, few_are_many, has_weights):
    new = draw_inputs(np.random.default_rng(2), 10, first_identity=1000)
    known = large if has_weights else replace(large, row_weights=None)
    rows = select_rows(known, new, 200)
    assert 100 < len(rows) <= 200
    exact, _ = explain_inputs(condition_logsums(large), new)
    local, _ = explain_inputs(condition_logsums(known, rows), new)
    error = np.sqrt(np.mean((local.log_mean - exact.log_mean) ** 2))
    assert error < (1e-8 if has_weights else 0.03)
    ratio = np.sqrt(local.log_variance / exact.log_variance)
    assert np.median(ratio) < 1.05
    # Fewer observations never make a prediction more certain.
    assert 1.0 - 1e-6 < ratio.min() <= ratio.max() < 1.15
    assert condition_logsums(large, np.arange(360)).full is None


def test_every_input_gets_its_rows(large, few_are_many, monkeypatch):
    monkeypatch.setattr(selection, "_CHUNK", 7)
    observed = large.inputs.take(large.observations.sums.counts.column[:40])
    # Its own observation is what matters most for an input.
    assert set(range(40)) <= set(select_rows(large, observed, 50).tolist())
    monkeypatch.setattr(selection, "ROWS_PER_INPUT", 1)
    assert len(select_rows(large, observed, 101)) <= 101
    assert len(select_rows(large, observed, 360)) == 360


@pytest.mark.parametrize("limit", [100, 400])
def test_further_observations_are_conditioned_on(large, monkeypatch, limit):
    """As if they had been there from the start: single inputs exactly, sums nearly.

    Of many observations, row weights are corrected for the new ones and those near them alone.
    """
    monkeypatch.setattr(selection, "MAX_EXACT_ROWS", limit)
    monkeypatch.setattr(selection, "LOCAL_ROWS", 120)
    new, size = draw_inputs(np.random.default_rng(4), 6, 500), large.inputs.size
    counts = WeightedSums(4, np.array([0, 1, 2, 3, 3, 3]), size + np.arange(6), np.ones(6))
    sums = replace(LogSums.of_counts(counts), identities=900 + np.arange(4))
    known = LogObservations(sums, np.log([2e-3, 3e-3, 4e-3, 8e-3]), np.full(4, 1e-5))
    extended = extend_fitted(large, new, known)
    assert len(extended.row_weights) == extended.observations.size == 364
    exact = predict_log_means(condition_logsums(extended), new)
    assert exact[:3] == pytest.approx(np.log([2e-3, 3e-3, 4e-3]), abs=0.1)
    assert np.abs(exact - large.predict_mean(new)).max() > 0.3
    assert extended.predict_mean(new) == pytest.approx(exact, abs=0.03)
    others = draw_inputs(np.random.default_rng(1), 30, first_identity=1000)
    one, two = (
        predict_log_means(condition_logsums(each), others)
        for each in (extended, keep_linearisation(extended))
    )
    assert np.median(np.abs(one - two)) < 0.01


def test_fit_finds_what_the_observations_were_drawn_from():
    fitted, _ = draw_fitted(np.random.default_rng(0), size=150, singles=130, several=40)
    found = fit_logsums(fitted.process, fitted.inputs, fitted.observations)
    assert found.prior.noise_sd == pytest.approx(0.02, rel=0.7)
    term = found.prior.terms[3]
    assert term.shared_sd**2 + term.regime_sd**2 == pytest.approx(0.25, rel=0.7)
    predicted = predict_log_totals(condition_logsums(found), found.inputs, found.observations.sums)
    assert predicted.log_mean == pytest.approx(found.observations.log_values, abs=0.15)


def test_subset_has_all_strata_few_inputs_and_no_large_sums():
    fitted, _ = draw_fitted(np.random.default_rng(2), size=200, singles=150, several=100)
    strata = np.where(np.arange(250) < 240, 0, np.arange(250))
    observations = replace(fitted.observations, strata=strata)
    rows = select_subset(observations, 60)
    assert len(rows) == 60 and set(range(240, 250)) <= set(rows.tolist())
    rows = select_subset(observations, 250, max_inputs=40)
    several = observations.sums.take(rows[rows >= 150])
    assert len(np.unique(several.counts.column)) <= 40
    inputs = np.bincount(observations.sums.counts.row, minlength=250)
    rows = select_subset(observations, 250, max_row_inputs=2)
    assert inputs.max() > 2 and inputs[rows].max() <= 2
    assert len(rows) == np.count_nonzero(inputs <= 2)


def make_objective(seed, caps=False, leaves_out=False):
    fitted, values = draw_fitted(np.random.default_rng(seed))
    inputs = draw_inputs(np.random.default_rng(seed), 30, caps=caps)
    process, counts = make_process(leaves_out=leaves_out), fitted.observations.sums.counts
    means, linear = process.theta_prior[0], linearise(counts, values)
    fitted = FittedLogSums(process, means, inputs, fitted.observations, linear)
    own = fitted.narrow(np.arange(fitted.observations.size))
    return SumObjective(process, own.inputs, own.observations, own.linear), own


@pytest.mark.parametrize(("caps", "leaves_out"), [(False, False), (True, False), (False, True)])
def test_gradient_equals_finite_differences(caps, leaves_out):
    objective, own = make_objective(0, caps, leaves_out)
    theta = own.theta + 0.3 * np.random.default_rng(0).normal(size=len(own.theta))
    evaluate = objective.negative_log_posterior
    steps = 1e-5 * np.eye(len(theta))
    differences = [evaluate(theta + step)[0] - evaluate(theta - step)[0] for step in steps]
    assert evaluate(theta)[1] == pytest.approx(np.array(differences) / 2e-5, abs=2e-5)


@pytest.mark.parametrize("leaves_out", [False, True])
def test_likelihood_equals_that_of_a_dense_normal(leaves_out):
    objective, own = make_objective(4, leaves_out=leaves_out)
    means, sds = own.process.theta_prior
    prior = own.process.unpack(means + 0.1)
    weights, sums = to_matrix(own.linear.weights, own.inputs.size), own.observations.sums
    cov = weights @ prior.covariance(own.inputs, own.inputs) @ weights.T
    cov += prior.discrepancy_covariance(sums, sums)
    cov += np.diag(prior.noise_sd**2 + own.observations.log_variance)
    residual = own.observations.log_values - own.linear.evaluate(prior.mean(own.inputs))
    dense = 0.5 * residual @ np.linalg.solve(cov, residual) + 0.5 * np.linalg.slogdet(cov)[1]
    value, _ = objective.negative_log_posterior(means + 0.1)
    assert value == pytest.approx(dense + 0.5 * ((0.1 / sds) ** 2).sum(), rel=1e-10)


def test_repeated_inputs_are_refused():
    _, own = make_objective(5)
    inputs = replace(own.inputs, identities=np.zeros(own.inputs.size, int))
    with pytest.raises(ValueError, match="only 1 are distinct"):
        SumObjective(own.process, inputs, own.observations, own.linear)


CLIFF = 7


@pytest.fixture
def ordinary(monkeypatch):
    monkeypatch.setattr(outliers, "_FEWEST_ROWS", 50)
    found, _ = draw_fitted(np.random.default_rng(0), size=120, singles=100, several=20)
    return keep_linearisation(found)


def slow_down(ordinary, rows, factor):
    """Return the process with some observations that took so many times as long."""
    log_values = ordinary.observations.log_values.copy()
    log_values[rows] += np.log(factor)
    observations = replace(ordinary.observations, log_values=log_values)
    return keep_linearisation(replace(ordinary, observations=observations))


def test_outlier_gets_the_variance_of_its_residual(ordinary):
    assert discount_outliers(ordinary) is None
    found = discount_outliers(slow_down(ordinary, [CLIFF], 1000.0))
    added = found.log_variance - ordinary.observations.log_variance
    assert np.flatnonzero(added).tolist() == [CLIFF]
    assert added[CLIFF] == pytest.approx(np.log(1000.0) ** 2, rel=0.5)


def test_one_outlier_does_not_change_the_fit(ordinary):
    plain, slow = (
        fit_logsums(one.process, one.inputs, one.observations)
        for one in (ordinary, slow_down(ordinary, [CLIFF], 1000.0))
    )
    others = np.arange(ordinary.inputs.size) != ordinary.observations.sums.counts.column[CLIFF]
    expected, found = (one.predict_mean(one.inputs)[others] for one in (plain, slow))
    assert found == pytest.approx(expected, abs=0.25)
    assert np.abs(found - expected).mean() < 0.05


@pytest.mark.parametrize("has_all", [True, False])
def test_restored_process_predicts_the_same(has_all):
    rng = np.random.default_rng(0)
    fitted = keep_linearisation(draw_fitted(rng)[0])
    inputs = replace(fitted.inputs, log_basis=rng.normal(size=(fitted.inputs.size, 2)))
    bare = replace(fitted, observations=replace(fitted.observations, strata=None), row_weights=None)
    fitted = replace(fitted, inputs=inputs) if has_all else bare
    data = json.loads(json.dumps(store_logsums(fitted)))
    optional = {"strata", "log_caps", "log_basis", "row_weights"} & set(data)
    assert optional == ({"strata", "log_basis", "row_weights"} if has_all else set())
    restored = restore_logsums(data)
    for path in ("inputs.log_basis", "row_weights", "observations.strata"):
        one, two = (attrgetter(path)(each) for each in (fitted, restored))
        assert np.array_equal(one, two)
    new, sums = draw_inputs(rng, 20, first_identity=25), draw_sums(rng, 20, 5, 10)
    plain = replace(restored, inputs=bare.inputs, row_weights=None)
    one, two = (predict_log_totals(condition_logsums(x), new, sums) for x in (bare, plain))
    assert (one.log_mean == two.log_mean).all()
    assert (one.log_variance == two.log_variance).all()


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.zeros((0, 4)), np.array([1e-300])]
)
def test_arrays_keep_shape_type_and_bits(array):
    found = PackedArray.pack(array).unpack()
    assert found.shape == array.shape
    assert found.dtype == array.dtype
    assert (found == array).all()


def test_array_that_unpacks_to_too_much_is_refused():
    packed = base64.b64encode(zlib.compress(bytes(MOST_UNPACKED_BYTES + 8))).decode("ascii")
    with pytest.raises(ValueError, match="unpacks to more than"):
        PackedArray("f", (MOST_UNPACKED_BYTES // 8 + 1,), packed).unpack()
