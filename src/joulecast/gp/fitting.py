"""Fit hyper-parameters: the MAP estimate by L-BFGS, then draws from the Laplace approximation.

θ̂   = argmin -ln p(θ | y)
θ_s  ~ N(θ̂, H⁻¹), H the Hessian at θ̂, in antithetic pairs θ̂ ± step
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from joulecast.gp.conditioning import FittedProcess
from joulecast.gp.hyperparameters import HyperPrior
from joulecast.gp.inputs import Inputs, TrainingData
from joulecast.gp.linalg import Floats
from joulecast.gp.log_posterior import LogPosterior

DRAW_COUNT = 8
# This many observations leave little open about the hyper-parameters: one pair of draws shows how
# much, and predicting is three times as fast.
MANY_OBSERVATIONS = 300
_DRAW_COUNT_OF_MANY = 2
# Bounds of the search, in prior standard deviations.
_SEARCH_SDS = 6.0
# Draws are clipped to this many standard deviations in each direction.
_DRAW_SDS = 2.5
# No direction of the posterior is wider than 1.4 times its prior.
_MIN_CURVATURE = 0.5


def fit_process(
    inputs: Inputs,
    data: TrainingData,
    prior: HyperPrior,
    draw_count: int = DRAW_COUNT,
    discrepancy_sd: float = 0.0,
) -> FittedProcess:
    """Return the process with its MAP hyper-parameters and draws around them.

    The search always starts at the prior's medians: started at the mode of fewer observations, it
    saved half of the time and ended at a worse mode in one of two fits.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    posterior = LogPosterior(inputs, data, prior)
    # The matrices are small: threads would wait for each other more than they work.
    with threadpool_limits(1, user_api="blas"):
        mode = _find_mode(posterior)
        if len(data.values) >= MANY_OBSERVATIONS:
            draw_count = min(draw_count, _DRAW_COUNT_OF_MANY)
        thetas = np.vstack([mode, *_draw_laplace(posterior, mode, draw_count)])
    return FittedProcess(inputs, data, prior.label_offset_sd, thetas, discrepancy_sd)


def _find_mode(posterior: LogPosterior) -> Floats:
    from scipy.optimize import minimize

    medians, reach = np.log(posterior.prior.medians), _SEARCH_SDS * posterior.prior.log_sds
    found = minimize(
        posterior.negative_log_posterior,
        medians,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(medians - reach, medians + reach, strict=True)),
        options={"maxiter": 80},
    )
    return np.asarray(found.x)


def _draw_laplace(posterior: LogPosterior, mode: Floats, draw_count: int) -> Iterator[Floats]:
    """Yield draws from the Laplace approximation, in antithetic pairs."""
    if draw_count < 2:
        return
    root = _laplace_root(posterior, mode)
    rng = np.random.default_rng(0)
    for _ in range(draw_count // 2):
        step = root @ np.clip(rng.standard_normal(len(mode)), -_DRAW_SDS, _DRAW_SDS)
        yield mode + step
        yield mode - step


def _laplace_root(posterior: LogPosterior, mode: Floats, step: float = 1e-3) -> Floats:
    """Return a root of the inverse Hessian, by finite differences of the gradient."""
    gradient = posterior.negative_log_posterior(mode)[1]
    differences = [
        posterior.negative_log_posterior(mode + step * unit)[1] - gradient
        for unit in np.eye(len(mode))
    ]
    hessian = np.array(differences) / step
    sds = posterior.prior.log_sds
    scaled = 0.5 * (hessian + hessian.T) * np.outer(sds, sds)
    values, vectors = np.linalg.eigh(scaled)
    return np.asarray(sds[:, None] * vectors / np.sqrt(np.maximum(values, _MIN_CURVATURE)))
