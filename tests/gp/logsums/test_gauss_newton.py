"""Log values around which sums are linearised."""

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums import posterior as gauss_newton
from joulecast.gp.logsums.inputs import LogInputs, LogObservations, LogSums
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums, linearise, log_sums
from joulecast.gp.logsums.prior import prior_log_mean
from joulecast.gp.logsums.process import ALL_INPUTS, KernelTerm, LogSumProcess
from joulecast.gp.logsums.totals import predict_inputs, predict_log_totals
from logsums_examples import draw_fitted, draw_inputs

NOISE_SD = 0.02


def draw_blocks(rng):
    """Return 70 sums over 190 uncertain inputs: 40 alone, and 30 blocks of 12 never seen alone."""
    alone, blocks, length, size = 40, 30, 12, 190
    entries = [[one] for one in range(alone)]
    entries += [sorted(rng.choice(np.arange(alone, size), length, False)) for _ in range(blocks)]
    row = np.repeat(np.arange(alone + blocks), [len(one) for one in entries])
    weight = rng.integers(1, 4, len(row)).astype(float)
    counts = WeightedSums(alone + blocks, row, np.concatenate(entries), weight)
    terms = (
        KernelTerm(ALL_INPUTS, shared_sd=(0.2, 0.5)),
        KernelTerm(0, (0, 1), shared_sd=(0.4, 0.5)),
    )
    process = LogSumProcess(((1e-3, 0.5),), terms, nugget_sd=(0.25, 0.5), noise_sd=(NOISE_SD, 0.1))
    inputs = LogInputs(
        np.exp(1.5 * rng.normal(size=(size, 1))),
        2.0 * rng.normal(size=(size, 2)),
        rng.integers(0, 5, (size, 1)),
        np.zeros(size, int),
        np.arange(size),
    )
    values = prior_log_mean(inputs, np.array([1e-3])) + 0.5 * rng.normal(size=size)
    log_values = log_sums(counts, values) + NOISE_SD * rng.normal(size=counts.size)
    observations = LogObservations(LogSums.of_counts(counts), log_values, np.zeros(counts.size))
    return FittedLogSums(process, process.prior.means, inputs, observations)


@pytest.mark.parametrize("seed", range(3))
def test_observed_sums_of_uncertain_inputs_are_predicted(seed):
    fitted = draw_blocks(np.random.default_rng(seed))
    sums = fitted.observations.sums
    found = predict_log_totals(condition_logsums(fitted), fitted.inputs, sums)
    assert found.log_mean == pytest.approx(fitted.observations.log_values, abs=3.0 * NOISE_SD)
    # The inputs of blocks remain uncertain: only their sums are known.
    inputs = predict_inputs(condition_logsums(fitted), fitted.inputs)
    assert np.median(np.sqrt(inputs.log_variance[40:])) > 0.15
    assert np.sqrt(found.log_variance).max() < 1.5 * NOISE_SD


def test_posterior_mean_reproduces_observed_sums(monkeypatch):
    """After enough steps the sums of the posterior means are the observed ones, within noise."""
    monkeypatch.setattr(gauss_newton, "_MAX_STEPS", 20)
    monkeypatch.setattr(gauss_newton, "_TOLERANCE", 1e-9)
    fitted, _ = draw_fitted(np.random.default_rng(0), structure_sd=(1e-3, 0.1), sum_sd=(1e-3, 0.1))
    posterior = condition_logsums(fitted)
    log_values = predict_inputs(posterior, posterior.inputs).log_mean
    totals = log_sums(posterior.sums.counts, log_values)
    assert totals == pytest.approx(fitted.observations.log_values, abs=0.06)


def test_few_steps_are_nearly_as_good_as_many(monkeypatch):
    rng = np.random.default_rng(1)
    fitted, _ = draw_fitted(rng)
    new = draw_inputs(rng, 20, first_identity=100)
    few = predict_inputs(condition_logsums(fitted), new)
    monkeypatch.setattr(gauss_newton, "_MAX_STEPS", 30)
    monkeypatch.setattr(gauss_newton, "_TOLERANCE", 1e-10)
    many = predict_inputs(condition_logsums(fitted), new)
    assert few.log_mean == pytest.approx(many.log_mean, abs=0.02)


def test_single_inputs_are_linearised_around_the_prior_mean():
    fitted, _ = draw_fitted(np.random.default_rng(2), several=0)
    posterior = condition_logsums(fitted)
    mean = prior_log_mean(posterior.inputs, fitted.hyper.coefficients)
    expected = linearise(posterior.sums.counts, mean)
    assert (posterior.linear.offsets == expected.offsets).all()
