"""Definitions of processes and the vector θ."""

import numpy as np
import pytest

from joulecast.gp.logsums.process import ALL_INPUTS, KernelTerm, LogSumProcess
from logsums_examples import make_process


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
