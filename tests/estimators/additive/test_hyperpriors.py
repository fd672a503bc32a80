"""Priors of the hyper-parameters."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.additive.decompose import decompose_observations
from joulecast.estimators.additive.hyperpriors import (
    ENERGY_PRIOR,
    IMPORTED_ENERGY_PRIOR,
    choose_priors,
    make_hyperprior,
)


def test_wide_priors_need_all_observations_to_be_imported(observations):
    imported = [replace(one, provenance="imported") for one in observations]
    assert choose_priors(decompose_observations(imported))[1] == IMPORTED_ENERGY_PRIOR
    mixed = [*imported[1:], observations[0]]
    assert choose_priors(decompose_observations(mixed))[1] == ENERGY_PRIOR


def test_medians_explain_their_share_of_a_typical_observation(model):
    fitted = model.energy.fitted
    prior = make_hyperprior(fitted.inputs, fitted.data, ENERGY_PRIOR)
    explained = (
        fitted.data.counts @ fitted.inputs.basis * prior.medians[: len(ENERGY_PRIOR.basis_shares)]
    )
    shares = explained / fitted.data.values[:, None]
    for column, share in zip(shares.T, ENERGY_PRIOR.basis_shares, strict=True):
        assert np.exp(np.log(column[column > 0]).mean()) == pytest.approx(share)


def test_idle_power_sets_the_prior_of_busy_power(model):
    fitted, busy = model.energy.fitted, len(ENERGY_PRIOR.basis_shares) - 1
    one, two = (
        make_hyperprior(fitted.inputs, fitted.data, ENERGY_PRIOR, idle_w=idle_w)
        for idle_w in (10.0, 20.0)
    )
    assert two.medians[busy] == pytest.approx(2.0 * one.medians[busy])
    assert one.medians[busy] == pytest.approx(30.0)
