"""Hyper-parameters and their prior."""

import numpy as np
import pytest

from gp_examples import AXES, BASIS_SIZE, OFFSET_SD, draw_inputs, draw_theta, make_hyperprior
from joulecast.gp.hyperparameters import HyperParameters


def test_unpacking_keeps_the_order_of_theta():
    values = np.arange(1.0, BASIS_SIZE + 4 + AXES + 2 + 1)
    hyper = HyperParameters.unpack(np.log(values), BASIS_SIZE, AXES, OFFSET_SD)
    sds = [hyper.local_sd, hyper.shared_sd, hyper.nugget_sd, hyper.noise_sd]
    scales = [*hyper.local_length_scales, *hyper.shared_length_scales]
    assert [*hyper.coefficients, *sds, *scales] == pytest.approx(values)
    assert len(hyper.local_length_scales) == AXES
    assert hyper.label_offset_sd == OFFSET_SD


def test_prior_is_smallest_at_its_medians_and_has_its_gradient():
    rng = np.random.default_rng(0)
    prior = make_hyperprior(draw_inputs(rng, 3))
    value, gradient = prior.negative_log_density(np.log(prior.medians))
    assert value == 0.0 and not gradient.any()
    theta = draw_theta(rng, prior)
    steps = 1e-6 * np.eye(len(theta))
    differences = [
        prior.negative_log_density(theta + step)[0] - prior.negative_log_density(theta - step)[0]
        for step in steps
    ]
    gradient = prior.negative_log_density(theta)[1]
    assert gradient == pytest.approx(np.array(differences) / 2e-6, rel=1e-5)
