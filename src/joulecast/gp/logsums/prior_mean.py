"""Mean of the prior over log values, with its derivatives.

    m_p   = Σ_k B_pk·c_k
    l_p   = ln m_p, or with a cap the soft minimum  -ln(m_p^-q + cap_p^-q) / q
    μ_p   = l_p + Σ_s H_ps·c_(K+s)    H basis functions of the logarithm, if there are any
    s_pk  = B_pk·c_k / m_p            share of a basis function in the mean

Basis functions of the logarithm are residuals of other devices, beyond means that had their cap.

With durations among the basis functions of energies, the derivative of μ by a duration's logarithm
carries the uncertainty of durations into energies. A cap at the power limit rises with the duration
too, so that its derivative belongs there.
"""

from __future__ import annotations

import numpy as np

from joulecast.gp.linalg import Floats, matvec
from joulecast.gp.logsums.log_inputs import LogInputs

# Exponent q of the soft minimum: it takes 3 % off a mean that is 15 % below its cap.
_CAP_EXPONENT = 8.0


def prior_log_mean(inputs: LogInputs, coefficients: Floats) -> Floats:
    """Return the prior mean μ of each input."""
    log_mean = _uncapped_log_mean(inputs, coefficients)
    if inputs.log_caps is not None:
        scaled = -_CAP_EXPONENT * np.array([log_mean, inputs.log_caps])
        log_mean = np.asarray(-np.logaddexp(scaled[0], scaled[1]) / _CAP_EXPONENT)
    if inputs.log_basis is not None:
        log_mean = log_mean + matvec(inputs.log_basis, coefficients[inputs.basis.shape[1] :])
    return log_mean


def coefficient_gradient(inputs: LogInputs, coefficients: Floats) -> Floats:
    """Return the derivative of μ by the logarithm of each coefficient, P x K."""
    size = inputs.basis.shape[1]
    terms = inputs.basis * coefficients[:size]
    shares = terms / terms.sum(axis=1, keepdims=True)
    shares = shares * _uncapped_share(inputs, coefficients)[:, None]
    if inputs.log_basis is not None:
        shares = np.column_stack([shares, inputs.log_basis * coefficients[size:]])
    return np.asarray(shares)


def elasticities(inputs: LogInputs, coefficients: Floats, column: int) -> Floats:
    """Return the derivative of μ by the logarithm of a basis function, P.

    A cap counts as proportional to that basis function.
    """
    uncapped = _uncapped_share(inputs, coefficients)
    terms = inputs.basis * coefficients[: inputs.basis.shape[1]]
    share = terms[:, column] / terms.sum(axis=1)
    return np.asarray(uncapped * share + (1.0 - uncapped))


def _uncapped_log_mean(inputs: LogInputs, coefficients: Floats) -> Floats:
    """Return ln m, the mean before a cap."""
    return np.asarray(np.log(matvec(inputs.basis, coefficients[: inputs.basis.shape[1]])))


def _uncapped_share(inputs: LogInputs, coefficients: Floats) -> Floats:
    """Return the derivative of l by ln m."""
    if inputs.log_caps is None:
        return np.ones(inputs.size)
    margin = _CAP_EXPONENT * (_uncapped_log_mean(inputs, coefficients) - inputs.log_caps)
    return np.asarray(1.0 / (1.0 + np.exp(np.minimum(margin, 500.0))))
