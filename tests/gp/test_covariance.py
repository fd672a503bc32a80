"""Prior covariances between inputs."""

from dataclasses import replace

import numpy as np
import pytest

from gp_examples import AXES, BASIS_SIZE, OFFSET_SD, draw_inputs
from joulecast.gp import linalg
from joulecast.gp.covariance import cross_covariance, prior_covariance
from joulecast.gp.hyperparameters import HyperParameters


def draw_hyperparameters(rng):
    theta = 0.2 * rng.normal(size=BASIS_SIZE + 4 + AXES + 2)
    return HyperParameters.unpack(theta, BASIS_SIZE, AXES, OFFSET_SD)


def test_covariance_does_not_depend_on_the_size_of_strips(monkeypatch):
    rng = np.random.default_rng(4)
    one, two, hyper = draw_inputs(rng, 30), draw_inputs(rng, 20), draw_hyperparameters(rng)
    whole = cross_covariance(one, two, hyper)
    monkeypatch.setattr(linalg, "_STRIP_SIZE", 50)
    assert cross_covariance(one, two, hyper) == pytest.approx(whole, rel=1e-12)


def test_variance_of_an_input_is_the_sum_of_all_terms():
    rng = np.random.default_rng(5)
    inputs, hyper = draw_inputs(rng, 8), draw_hyperparameters(rng)
    sds = hyper.label_offset_sd, hyper.local_sd, hyper.shared_sd, hyper.nugget_sd
    total = sum(sd**2 for sd in sds)
    assert np.diag(prior_covariance(inputs, hyper)) == pytest.approx(np.full(8, total))


def test_labels_share_nothing_but_the_shared_kernel():
    rng = np.random.default_rng(6)
    hyper = draw_hyperparameters(rng)
    one, two = draw_inputs(rng, 4, shared_axes=0), draw_inputs(rng, 5, shared_axes=0)
    two = replace(two, labels=two.labels + 10)
    assert not cross_covariance(one, two, hyper).any()


def test_order_of_labels_does_not_matter():
    """Contiguous labels are written in place, others are not."""
    rng = np.random.default_rng(7)
    inputs, hyper = draw_inputs(rng, 12), draw_hyperparameters(rng)
    order = np.argsort(inputs.labels, kind="stable")
    expected = cross_covariance(inputs, inputs, hyper)[np.ix_(order, order)]
    ordered = inputs.take(order)
    assert cross_covariance(ordered, ordered, hyper) == pytest.approx(expected, rel=1e-9)
