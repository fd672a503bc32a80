"""Predict sums over inputs: mean and variance over all draws of the hyper-parameters.

The variance has two parts: within draws, what the observations leave open, and between draws, what
the hyper-parameters leave open. With few observations the second one matters: the mode of the
hyper-parameters alone is overconfident. Needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.gp.conditioning import ConditionedProcess, FittedProcess
from joulecast.gp.covariance import prior_covariance
from joulecast.gp.inputs import Inputs
from joulecast.gp.linalg import Floats, matmul, matvec
from joulecast.gp.weighted_sums import PriorSumVariance, WeightedSums

# An input's value is at least this share of its prior mean: costs are positive, so that a posterior
# mean below it is noise.
_MIN_MEAN_SHARE = 0.05


@dataclass(frozen=True)
class SumPrediction:
    """Posterior of n sums over p inputs.

    Attributes:
        mean: Means of the sums, n.
        variance: Their variances, n.
        covariance: Their joint covariance, n x n; None unless requested.
        input_mean: Mean of each input that occurs in any sum, p.
    """

    mean: Floats
    variance: Floats
    covariance: Floats | None
    input_mean: Floats


def predict_sums(
    fitted: FittedProcess, inputs: Inputs, sums: WeightedSums, joint: bool = False
) -> SumPrediction:
    """Return the posterior of sums.

    Args:
        fitted: The process.
        inputs: Distinct inputs of the sums.
        sums: The sums.
        joint: Whether to return their joint covariance; without it, memory stays bounded.
    """
    if joint:
        return _predict_chunk(fitted, inputs, sums, joint=True)
    input_mean = np.zeros(inputs.size)
    mean, variance = [np.zeros(0)], [np.zeros(0)]
    for index, chunk in sums.iterate_chunks(fitted.inputs.size):
        part = _predict_chunk(fitted, inputs.take(index), chunk, joint=False)
        input_mean[index] = part.input_mean
        mean.append(part.mean)
        variance.append(part.variance)
    return SumPrediction(np.concatenate(mean), np.concatenate(variance), None, input_mean)


def predict_sum_means(
    fitted: FittedProcess, inputs: Inputs, sums: WeightedSums
) -> tuple[Floats, Floats]:
    """Return the means of sums and of inputs as ``predict_sums`` does, without variances."""
    parts = [
        _predict_means(draw, inputs, sums, draw.covariance_with(inputs)) for draw in fitted.draws
    ]
    means, input_means, _ = zip(*parts, strict=True)
    return _average(means), _average(input_means)


def posterior_input_mean(draw: ConditionedProcess, inputs: Inputs, cov: Floats) -> Floats:
    """Return the posterior mean of inputs, given their covariance with the training inputs."""
    share = 1.0 + matvec(cov, draw.weights)
    return np.asarray(inputs.mean(draw.hyper) * np.maximum(share, _MIN_MEAN_SHARE))


def find_discrepancy_loadings(
    draw: ConditionedProcess, inputs: Inputs, sums: WeightedSums
) -> Floats:
    """Return the loadings F of the covariance F·Fᵀ of discrepancies, sums x labels.

    Labels of the training data come first, then new ones.
    """
    labels = inputs.labels
    size = max(len(draw.discrepancy_weights), int(labels.max(initial=-1)) + 1)
    costs = np.zeros((sums.size, size))
    entries = sums.weight * inputs.mean(draw.hyper)[sums.column]
    np.add.at(costs, (sums.row, labels[sums.column]), entries)
    root = np.sqrt(np.maximum(costs, 0.0) * costs.sum(axis=1, keepdims=True))
    return np.asarray(draw.discrepancy_sd * root)


def _predict_chunk(
    fitted: FittedProcess, inputs: Inputs, sums: WeightedSums, joint: bool
) -> SumPrediction:
    """Return the mixture of the posteriors under all draws."""
    prior = PriorSumVariance(inputs, sums)
    parts = [_predict_draw(draw, inputs, sums, prior, joint) for draw in fitted.draws]
    mean = _average([part.mean for part in parts])
    between = _average([(part.mean - mean) ** 2 for part in parts])
    variance = _average([part.variance for part in parts]) + between
    covariance = None
    if joint:
        within = _average([part.covariance for part in parts if part.covariance is not None])
        offsets = [part.mean - mean for part in parts]
        covariance = within + _average([np.outer(offset, offset) for offset in offsets])
    return SumPrediction(mean, variance, covariance, _average([part.input_mean for part in parts]))


def _predict_draw(
    draw: ConditionedProcess,
    inputs: Inputs,
    sums: WeightedSums,
    prior: PriorSumVariance,
    joint: bool,
) -> SumPrediction:
    cov = draw.covariance_with(inputs)
    mean, input_mean, loadings = _predict_means(draw, inputs, sums, cov)
    entries = sums.weight * inputs.mean(draw.hyper)[sums.column]
    explained = matmul(sums.pattern.matmul(entries, cov), draw.projection)
    variance = prior.variance(entries, draw.hyper)
    if draw.discrepancy_sd:
        trained = loadings[:, : len(draw.discrepancy_weights)]
        explained = explained + matmul(trained, draw.discrepancy_projection)
        variance = variance + (loadings**2).sum(axis=1)
    variance = variance - (explained**2).sum(axis=1)
    covariance = None
    if joint:
        half = sums.pattern.matmul(entries, prior_covariance(inputs, draw.hyper))
        covariance = sums.pattern.matmul(entries, half.T) + loadings @ loadings.T
        covariance = covariance - matmul(explained, explained.T)
    return SumPrediction(mean, np.maximum(variance, 0.0), covariance, input_mean)


def _predict_means(
    draw: ConditionedProcess, inputs: Inputs, sums: WeightedSums, cov: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the means of sums and of inputs, and the loadings of the sums' discrepancies."""
    input_mean = posterior_input_mean(draw, inputs, cov)
    mean, loadings = sums.total(input_mean), np.zeros((sums.size, 0))
    if draw.discrepancy_sd:
        loadings = find_discrepancy_loadings(draw, inputs, sums)
        trained = loadings[:, : len(draw.discrepancy_weights)]
        mean = mean + matvec(trained, draw.discrepancy_weights)
    return mean, input_mean, loadings


def _average(arrays: Sequence[Floats]) -> Floats:
    return np.asarray(sum(arrays) / len(arrays))
