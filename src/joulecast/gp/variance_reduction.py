"""Predict how much measuring single inputs would reduce the variance of sums.

    c_ip      posterior covariance of sum i and input p
    s_p²      posterior variance of a noisy measurement of input p
    c²/s²     expected variance reduction of sum i, whatever the measurement shows

The mode of the hyper-parameters is used alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.gp.conditioning import FittedProcess
from joulecast.gp.covariance import prior_covariance
from joulecast.gp.inputs import Inputs
from joulecast.gp.linalg import Floats, matmul
from joulecast.gp.prediction import find_discrepancy_loadings, posterior_input_mean
from joulecast.gp.weighted_sums import WeightedSums


@dataclass(frozen=True)
class CandidateMeasurements:
    """Measurements of single inputs that could be made.

    Attributes:
        covariance: Posterior covariance of each sum with each input, n x p.
        mean: Posterior mean of each input, p.
        variance: Posterior variance of a measurement of each input, noise included, p.
    """

    covariance: Floats
    mean: Floats
    variance: Floats

    def variance_reduction(self, scale: Floats) -> Floats:
        """Return what measuring each input takes off the mean variance of the scaled sums, p.

        Args:
            scale: Factor of each sum, n.
        """
        reduction = np.mean((self.covariance * scale[:, None]) ** 2, axis=0)
        return np.asarray(reduction / self.variance)


def predict_measurements(
    fitted: FittedProcess, inputs: Inputs, sums: WeightedSums
) -> CandidateMeasurements:
    """Return what measurements of the inputs would show, and how they relate to the sums."""
    draw = fitted.draws[0]
    training_cov = draw.covariance_with(inputs)
    prior_mean = inputs.mean(draw.hyper)
    explained = matmul(training_cov, draw.projection)
    cov = prior_covariance(inputs, draw.hyper) - matmul(explained, explained.T)
    cov *= np.outer(prior_mean, prior_mean)
    sum_cov = sums.pattern.matmul(sums.weight, cov)
    if draw.discrepancy_sd:
        loadings = find_discrepancy_loadings(draw, inputs, sums)[:, : len(draw.discrepancy_weights)]
        sum_cov -= matmul(matmul(loadings, draw.discrepancy_projection), explained.T) * prior_mean
    mean = posterior_input_mean(draw, inputs, training_cov)
    noise = (draw.hyper.noise_sd * mean) ** 2
    return CandidateMeasurements(sum_cov, mean, np.maximum(np.diag(cov), 0.0) + noise)
