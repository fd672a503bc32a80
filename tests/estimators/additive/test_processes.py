"""Processes of durations and powers, and the priors of their hyper-parameters."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.additive.fit import fit_model
from joulecast.estimators.additive.processes import define_durations, define_powers


@pytest.fixture(scope="module")
def encoder(model):
    return model.encoder


def test_costs_of_the_roofline_are_medians(encoder):
    process = define_durations(encoder, overhead_s=1.0)
    assert [median for median, _ in process.coefficients] == list(encoder.roofline.costs)
    assert [log_sd for _, log_sd in process.coefficients] == list(encoder.roofline.log_sds)


def test_idle_power_sets_the_prior_of_static_power(encoder):
    unknown, one, two = (
        define_powers(encoder, idle_w, 1.0).coefficients[0][0] for idle_w in (0.0, 4.0, 8.0)
    )
    assert two == pytest.approx(2.0 * one)
    assert one > 4.0
    assert 0.0 < unknown < encoder.power_limit_w


def test_static_power_leaves_room_below_the_limit(encoder):
    static_w = define_powers(encoder, encoder.power_limit_w, 1.0).coefficients[0][0]
    assert static_w == pytest.approx(0.5 * encoder.power_limit_w)


def test_overheads_have_coefficients_of_their_own(encoder):
    own = replace(encoder, overheads=("overhead of a", "overhead of b"))
    for define, value in (
        (define_durations, 7.0),
        (lambda *a: define_powers(a[0], 1.0, a[1]), 9.0),
    ):
        plain, more = (define(one, value).coefficients for one in (encoder, own))
        assert more[: len(plain)] == plain
        assert [median for median, _ in more[len(plain) :]] == [value, value]


def test_imported_runs_may_be_noisier(encoder):
    """Nothing is known of how they were measured."""
    for own, imported in (
        [define_durations(encoder, 1.0, flag).noise_sd for flag in (False, True)],
        [define_powers(encoder, 1.0, 1.0, flag).noise_sd for flag in (False, True)],
    ):
        assert imported[0] > own[0] and imported[1] > own[1]


def test_noise_of_imported_runs_needs_all_to_be_imported(observations):
    imported = [replace(one, provenance="imported") for one in observations]
    noises = [
        fit_model(some).power.process.noise_sd
        for some in (imported, [*imported[1:], observations[0]], observations)
    ]
    assert noises[0] != noises[1] == noises[2]


def test_prior_medians_are_near_what_is_fitted(model):
    """Within a few of the prior's standard deviations."""
    for fitted in (model.duration, model.power):
        prior = fitted.process.prior
        scores = (fitted.theta - prior.means) / prior.sds
        assert np.abs(scores).max() < 4.0
