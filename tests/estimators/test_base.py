"""What estimators share: grouping by setup, covariances, energies by layer, plausibility."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.base import (
    FittedBySetup,
    Prediction,
    equicorrelated_covariance,
    fit_work_rates,
    split_energy_by_bytes,
)
from joulecast.estimators.plausibility import (
    agree,
    drop_contradicted,
    list_implausible,
    score_by_neighbours,
)
from joulecast.families import make_family
from joulecast.operators import layer_work, make_layer
from joulecast.records import OWN_NET, Network, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import draw_networks
from joulecast.variants import Block, make_isolated_trial

ONE, TWO = Setup(batch=1), Setup(batch=2)


def make_prediction(networks, setup, with_device=True):
    """Return a prediction whose values name the network and the setup."""
    values = np.array([10.0 * len(network.layers) + setup.batch for network in networks])
    return Prediction(
        energy_j=values,
        energy_sd_j=0.1 * values,
        energy_cov=np.outer(values, values),
        duration_s=2.0 * values,
        layers=((),) * len(values),
        unseen_share=tuple(values.tolist()),
        device_energy_j=0.5 * values if with_device else None,
        uncertainty_sources=tuple({str(value): 1.0} for value in values),
        duration_sd_s=0.2 * values,
    )


def make_networks(*sizes):
    layers = make_family("cnn5").layers
    return [Network(layers[:size]) for size in sizes]


class ToyFit(FittedBySetup):
    """A fit that knows energies of the device and sentences of one setup alone."""

    def __init__(self, known):
        self.calls, self.known = [], known

    def predict_setup(self, networks, setup, joint, per_layer):
        self.calls.append(setup)
        notes = (("far",),) * len(networks) if setup not in self.known else ()
        return replace(make_prediction(networks, setup, setup in self.known), notes=notes)


def test_predictions_by_setup_come_in_the_given_order():
    networks, setups = make_networks(1, 2, 3), [ONE, TWO, ONE]
    fit = ToyFit({ONE})
    found = fit.predict(networks, setups)
    expected = np.array([11.0, 22.0, 31.0])
    assert fit.calls == [ONE, TWO]
    assert (found.energy_j == expected).all() and (found.duration_s == 2 * expected).all()
    assert found.unseen_share == tuple(expected)
    assert [list(shares) for shares in found.uncertainty_sources] == [[str(e)] for e in expected]
    assert found.notes == ((), ("far",), ())
    # Errors of different setups are independent.
    assert (found.energy_cov == [[121, 0, 341], [0, 484, 0], [341, 0, 961]]).all()
    # Values that one setup lacks are unknown for all.
    assert found.device_energy_j is None and found.duration_sd_s is not None
    every = ToyFit({ONE, TWO}).predict(networks, setups)
    assert (every.device_energy_j == 0.5 * expected).all() and every.notes == ()


def test_half_of_the_variance_is_common_and_equal_queries_are_equal():
    cov = equicorrelated_covariance(["a", "b", "a"], np.array([1.0, 2.0, 1.0]))
    assert (cov == [[1.0, 1.0, 1.0], [1.0, 4.0, 1.0], [1.0, 1.0, 1.0]]).all()


def test_energy_is_divided_by_the_bytes_that_layers_move():
    layers = draw_networks(1)[0].layers
    rows = split_energy_by_bytes(layers, 6.0, True, ONE)
    sizes = np.array([layer_work(layer, ONE).total.size_bytes for layer in layers])
    assert [row.energy_j for row in rows] == pytest.approx(6.0 * sizes / sizes.sum())
    assert [row.kind for row in rows] == [layer.kind for layer in layers]


def test_rates_are_recovered_although_they_differ_by_orders_of_magnitude():
    expected = np.array([3e-12, 2e-10, 5e-6])
    work = np.random.default_rng(0).uniform(0.1, 1.0, (20, 3)) * [1e10, 1e7, 20.0]
    rates, error_share = fit_work_rates(work, work @ expected, work @ expected)
    assert rates == pytest.approx(expected, rel=1e-6)
    assert error_share == pytest.approx(0.0, abs=1e-6)


# Durations far from those of similar trials are implausible.

DEVICE = make_simulated_device(3, noise=0.0)


def observe_linears(count=40, slower=()):
    """Return isolated linear layers of growing widths; some take so many times as long."""
    found = []
    for place in range(count):
        width = 64 + 24 * place
        block = Block("hidden", (make_layer("linear", cin=width, cout=2 * width),))
        trial = make_isolated_trial(block, Setup(batch=64 + place), "graph")
        duration_s = dict(slower).get(place, 1.0) * DEVICE.true_cost(trial).duration_s
        found.append(Observation(trial, duration_s=duration_s))
    return found


def test_slow_observations_stand_out_among_enough_others_and_the_worst_comes_first():
    assert not list_implausible(observe_linears())
    observations = observe_linears(slower={5: 4.0, 30: 9.0})
    assert list_implausible(observations) == [observations[30], observations[5]]
    untimed = [replace(one, duration_s=None) for one in observe_linears()]
    for few in (observe_linears(5, {2: 100.0}), untimed):
        assert not score_by_neighbours(few).any()


TRIAL = Trial(make_family("lenet5:4,6,24,16"), Setup(batch=10))
OTHER = Trial(make_family("lenet5:4,6,24,17"), Setup(batch=10))


def observe(duration_s, energy_j=None, trial=TRIAL, **facts):
    return Observation(trial, energy_j=energy_j, duration_s=duration_s, **facts)


@pytest.mark.parametrize(
    ("durations_s", "believed"),
    [
        ([1.0], [1.0]),
        ([1.0, 1.2], [1.0, 1.2]),
        ([4.0, 1.0, 1.1], [1.0, 1.1]),
        ([1.0, 1.1, 4.0], [1.0, 1.1]),
        ([4.0, 1.0], [1.0]),
        ([1.0, 4.0], [4.0]),
        ([4.0, 1.0, 9.0], [9.0]),
        ([4.0, 4.1, 1.0, 1.1], [1.0, 1.1]),
    ],
)
def test_majority_is_believed_then_the_latest(durations_s, believed):
    found = drop_contradicted([observe(duration_s) for duration_s in durations_s])
    assert [one.duration_s for one in found] == believed


def test_energies_are_compared_too():
    found = drop_contradicted([observe(1.0, 5.0), observe(1.0, 50.0), observe(1.1, 5.1)])
    assert [one.energy_j for one in found] == [5.0, 5.1]
    assert agree(observe(1.0), observe(1.0, 50.0))
    assert not agree(observe(1.0, 5.0), observe(1.0, 50.0))


def test_other_trials_sources_and_imported_runs_are_kept_in_order():
    kept = [
        observe(1.0),
        observe(9.0, trial=OTHER),
        observe(9.0, trial=replace(TRIAL, setup=Setup(batch=11))),
        observe(9.0, source=OWN_NET),
        observe(9.0, provenance="imported"),
        observe(1.0, 1.0, Trial(Network(), Setup())),
        observe(1.1),
    ]
    # Refused trials are left out.
    refused = Observation(OTHER, refusal="it does not fit")
    assert drop_contradicted([refused, *kept]) == tuple(kept)
