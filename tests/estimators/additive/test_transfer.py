"""Devices that start from others: like ones, unlike ones, and what is stored of them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from additive_examples import (
    SETUP,
    draw_networks,
    encode_sums,
    observe_blocks,
    observe_idle,
    observe_step,
    predict,
    true_energies,
)
from joulecast.estimators.additive.encode import SourceMean
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.additive.layers import count_layers, split_layers
from joulecast.gp.lognormal import log_variance
from joulecast.gp.logsums import selection as relinearisation
from joulecast.records import Trial
from joulecast.simulation import make_simulated_device


@pytest.fixture(scope="module")
def source(observations):
    return AdditiveEstimator().fit(observations).as_source("simulated-201", "key")


def observe_twin(observations, time_factor=1.7, power_factor=0.6):
    """Return observations of a device with the same law, only slower and of less power."""
    return [
        replace(
            one,
            duration_s=time_factor * one.duration_s,
            issue_s=None if one.issue_s is None else time_factor * one.issue_s,
            energy_j=one.energy_j and time_factor * power_factor * one.energy_j,
        )
        for one in observations
    ]


@pytest.fixture(scope="module")
def few(device):
    """A few observations of a twin of the source."""
    parts = observe_blocks(device, draw_networks(1, seed=8))
    eager = observe_step(device, Trial(draw_networks(1, seed=8)[0], SETUP), energy=False)
    return observe_twin([*parts, eager, observe_idle(device)])


@pytest.fixture(scope="module")
def transferred(few, source):
    return AdditiveEstimator((source,)).fit(few)


def list_operators(networks):
    counts = [count_layers(split_layers(one, SETUP)) for one in networks]
    return encode_sums(counts).operators


def mape(fitted, networks, truth_j):
    return 100 * np.mean(np.abs(predict(fitted, networks).energy_j / truth_j - 1))


def test_residuals_are_what_the_roofline_lacks(source, model):
    operators = list_operators(draw_networks(2, seed=1))
    inputs = model.encoder.encode_durations(operators)
    costs = model.duration.prior.coefficients
    expected = model.duration.predict_mean(inputs) - np.log(inputs.basis @ costs)
    found = source.predict_residuals(operators)
    assert found[:, 0] == pytest.approx(expected)
    assert np.abs(found).max() > 0.05
    # The same operators again, in another order and only some of them.
    assert (source.predict_residuals(operators[3:0:-1]) == found[3:0:-1]).all()


def test_device_like_its_source_needs_fewer_observations(few, transferred, device):
    networks = draw_networks(20, seed=9)
    truth_j = 1.7 * 0.6 * np.array(true_energies(device, networks))
    cold = AdditiveEstimator().fit(few)
    assert mape(transferred, networks, truth_j) < 0.8 * mape(cold, networks, truth_j)
    share = transferred.duration.prior.coefficients[-1]
    assert 0.5 < share < 1.5


def test_source_that_teaches_nothing_does_no_harm(few, source, device):
    """Its residuals are of the opposite sign, so that none of them is shared."""
    flipped = replace(source.duration, input_weights=negate(source.duration.input_weights))
    unlike = replace(source, duration=flipped)
    networks = draw_networks(20, seed=9)
    truth_j = 1.7 * 0.6 * np.array(true_energies(device, networks))
    cold, fitted = (AdditiveEstimator(one).fit(few) for one in ((), (unlike,)))
    assert fitted.duration.prior.coefficients[-1] < 0.4
    assert mape(fitted, networks, truth_j) < 1.3 * mape(cold, networks, truth_j)


def negate(packed):
    return type(packed).pack(-packed.unpack())


def test_own_observations_outweigh_sources(few, source):
    """Whatever the source says, parts that were measured cost what was measured."""
    strange = [replace(one, duration_s=3.0 * one.duration_s) for one in few[:3]]
    fitted = AdditiveEstimator((source,)).fit([*strange, *few[3:]])
    operators = [one for layer in fitted_layers(strange) for one, _ in layer.operators_alone]
    assert operators
    cold = AdditiveEstimator().fit([*strange, *few[3:]])
    one, two = (
        fit.duration.predict_mean(fit.encoder.encode_durations(operators)) for fit in (fitted, cold)
    )
    totals = [np.log(np.exp(values).sum()) for values in (one, two)]
    assert totals[0] == pytest.approx(totals[1], abs=0.1)


def fitted_layers(observations):
    from joulecast.estimators.additive.observations import decompose_observations

    return [layer for one in decompose_observations(observations) for layer in one.counts]


def test_intervals_stay_honest():
    """On three devices of other laws, from few parts of each."""
    first = make_simulated_device(210, noise=0.0)
    learnt = AdditiveEstimator().fit(observe_all(first, draw_networks(6, seed=1)))
    source, errors = learnt.as_source("first", "first"), []
    for seed in (211, 212, 213):
        device, networks = make_simulated_device(seed, noise=0.0), draw_networks(15, seed=3)
        fitted = AdditiveEstimator((source,)).fit(observe_all(device, draw_networks(2, seed=2)))
        found = predict(fitted, networks)
        pairs = zip(found.energy_j, found.energy_sd_j**2, strict=True)
        sds = np.sqrt([log_variance(*one) for one in pairs])
        errors.extend(np.log(found.energy_j / true_energies(device, networks)) / sds)
    inside = np.mean(np.abs(errors) < 1.96)
    assert inside >= 0.85


def observe_all(device, networks):
    eager = [observe_step(device, Trial(one, SETUP), energy=False) for one in networks[:2]]
    return [*observe_blocks(device, networks), *eager, observe_idle(device)]


def test_later_fits_keep_their_sources(few, transferred, source, device):
    more = observe_twin(observe_blocks(device, draw_networks(1, seed=11)))
    again = AdditiveEstimator().fit([*few, *more[:2]], transferred)
    assert again.sources == (source,) and again.fitted_count == transferred.fitted_count
    anew = AdditiveEstimator().fit([*few, *more, *observe_twin(few, 1.71)], transferred)
    assert anew.sources == (source,) and anew.fitted_count > transferred.fitted_count
    other = replace(source, name="another")
    assert AdditiveEstimator((other,)).fit(few, transferred).sources == (other,)


def test_predictions_name_the_sources(transferred):
    found = transferred.predict(draw_networks(1), [SETUP], per_layer=True)
    assert found.notes[0][0].startswith("Transferred from simulated-201: ")


def test_device_that_started_from_others_can_be_a_source(transferred, few):
    chained = AdditiveEstimator((transferred.as_source("twin", "twin"),)).fit(few)
    restored = AdditiveEstimator().load(json.loads(json.dumps(chained.to_dict())))
    networks = draw_networks(2, seed=4)
    assert (predict(restored, networks).energy_j == predict(chained, networks).energy_j).all()
    assert restored.sources[0].encoder.sources[0].name == "simulated-201"


def test_several_sources_have_a_share_each(few, source):
    fitted = AdditiveEstimator((source, replace(source, name="another"))).fit(few)
    shares = fitted.duration.prior.coefficients[-2:]
    assert 0.5 < shares.sum() < 1.5


def test_source_without_a_posterior_mean_is_conditioned(model, monkeypatch):
    """Fits of very many observations keep no weights of all of them."""
    monkeypatch.setattr(relinearisation, "_MAX_JOINT_ROWS", 10)
    large = relinearisation.keep_linearisation(model.duration)
    assert large.row_weights is None
    inputs = model.encoder.encode_durations(list_operators(draw_networks(2, seed=1)))
    one, two = (SourceMean.from_fitted(each).predict(inputs)[0] for each in (large, model.duration))
    assert one == pytest.approx(two, abs=0.02)
