"""Random processes over log values, inputs and sums for the tests of gp.logsums."""

import numpy as np

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums.inputs import ALL_INPUTS, NO_GROUP, LogInputs, LogObservations, LogSums
from joulecast.gp.logsums.posterior import FittedLogSums
from joulecast.gp.logsums.prior import KernelTerm, LogSumProcess

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
