"""Mean of the prior over log values, with its derivatives.

    m_p   = Σ_k B_pk·c_k
    l_p   = ln m_p + Σ_s H_ps·c_(K+s)  H basis functions of the logarithm, if there are any
    μ_p   = l_p, or with a cap the soft minimum  -ln(exp(-q·l_p) + cap_p^-q) / q
    s_pk  = B_pk·c_k / m_p            share of a basis function in the mean

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
    if inputs.log_caps is None:
        return np.asarray(log_mean)
    scaled = -_CAP_EXPONENT * np.array([log_mean, inputs.log_caps])
    return np.asarray(-np.logaddexp(scaled[0], scaled[1]) / _CAP_EXPONENT)


def coefficient_gradient(inputs: LogInputs, coefficients: Floats) -> Floats:
    """Return the derivative of μ by the logarithm of each coefficient, P x K."""
    size = inputs.basis.shape[1]
    terms = inputs.basis * coefficients[:size]
    shares = terms / terms.sum(axis=1, keepdims=True)
    if inputs.log_basis is not None:
        shares = np.column_stack([shares, inputs.log_basis * coefficients[size:]])
    return np.asarray(shares * _uncapped_share(inputs, coefficients)[:, None])


def elasticities(inputs: LogInputs, coefficients: Floats, column: int) -> Floats:
    """Return the derivative of μ by the logarithm of a basis function, P.

    A cap counts as proportional to that basis function.
    """
    uncapped = _uncapped_share(inputs, coefficients)
    terms = inputs.basis * coefficients[: inputs.basis.shape[1]]
    share = terms[:, column] / terms.sum(axis=1)
    return np.asarray(uncapped * share + (1.0 - uncapped))


def _uncapped_log_mean(inputs: LogInputs, coefficients: Floats) -> Floats:
    """Return the mean l before a cap."""
    size = inputs.basis.shape[1]
    log_mean = np.log(matvec(inputs.basis, coefficients[:size]))
    if inputs.log_basis is None:
        return np.asarray(log_mean)
    return np.asarray(log_mean + matvec(inputs.log_basis, coefficients[size:]))


def _uncapped_share(inputs: LogInputs, coefficients: Floats) -> Floats:
    """Return the derivative of μ by l."""
    if inputs.log_caps is None:
        return np.ones(inputs.size)
    margin = _CAP_EXPONENT * (_uncapped_log_mean(inputs, coefficients) - inputs.log_caps)
    return np.asarray(1.0 / (1.0 + np.exp(np.minimum(margin, 500.0))))
