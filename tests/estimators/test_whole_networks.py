"""Test the baselines that are linear in the work of whole networks."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.base import Target, setup_key
from joulecast.estimators.whole_networks import WholeNetworkEstimator
from joulecast.families import make_family
from joulecast.operators import network_work
from joulecast.records import Execution, Input, Network, Observation, Setup, Trial
from joulecast.testing.estimators import SETUP, EstimatorContract, draw_networks

FLOPS, LINEAR_FLOPS, LINEAR_WORK = map(
    WholeNetworkEstimator, ("flops", "flops-linear", "work-linear")
)


def predict_calls(fitted):
    """Return the energies of a network, and of one that calls its first layer twice."""
    once = draw_networks(1)[0]
    twice = replace(once, layers=(replace(once.layers[0], calls=2), *once.layers[1:]))
    return fitted.predict([once, twice], [SETUP] * 2).energy_j


class TestFlops(EstimatorContract):
    name = "flops"

    def make_estimator(self):
        return WholeNetworkEstimator(self.name)


class TestLinearWork(TestFlops):
    name = "work-linear"


class TestLinearFlops(TestFlops):
    name = "flops-linear"

    def test_layer_that_is_called_twice_costs_more(self):
        """The suite's networks wait for their host: their line is flat, so use others."""
        once_j, twice_j = predict_calls(LINEAR_FLOPS.fit(make_proportional(3e-9)))
        assert twice_j > once_j


class TestConstant(TestFlops):
    name = "constant"

    def test_layer_that_is_called_twice_costs_more(self):
        """All networks cost the same, so it does not."""
        once_j, twice_j = predict_calls(self.fit())
        assert twice_j == once_j > 0


def count_flops(network, setup=SETUP):
    return network_work(network, setup).total.flops


def observe(networks, energies_j, setup=SETUP):
    """Return observations of networks with these energies, which take twice as many seconds."""
    pairs = zip(networks, energies_j, strict=True)
    return [Observation(Trial(one, setup), float(e), 0.0, 2 * float(e)) for one, e in pairs]


def make_proportional(j_per_flop, setup=SETUP):
    """Return observations whose energy is proportional to FLOPs."""
    networks = draw_networks(6)
    return observe(networks, [j_per_flop * count_flops(one, setup) for one in networks], setup)


def test_flops_does_not_use_stages_of_a_step():
    seen = make_proportional(1e-9)[0]
    forward = replace(seen.trial, execution=Execution(stage="forward"))
    assert FLOPS.uses(seen)
    assert not FLOPS.uses(replace(seen, trial=forward))


def test_each_setup_has_its_own_factor():
    other, network = Setup(batch=64), draw_networks(1)[0]
    fitted = FLOPS.fit(make_proportional(1e-9) + make_proportional(5e-9, other))
    expected = [1e-9 * count_flops(network), 5e-9 * count_flops(network, other)]
    assert fitted.predict([network] * 2, [SETUP, other]).energy_j == pytest.approx(expected)


def test_setup_with_too_few_networks_uses_the_line_of_all():
    other = Setup(batch=64)
    few = make_proportional(5e-9, other)[:1]
    fitted = LINEAR_FLOPS.fit(make_proportional(1e-9) + few)
    alone = LINEAR_FLOPS.fit(few)
    assert fitted.lines[setup_key(other)] == fitted.lines["*"] != alone.lines["*"]
    found = fitted.predict([draw_networks(1)[0]], [other])
    assert found.unseen_share == (0.0,)


@pytest.mark.parametrize("estimator", [LINEAR_FLOPS, LINEAR_WORK])
def test_coefficients_are_never_negative(estimator):
    seen = [replace(one, energy_j=one.energy_j**1.3) for one in make_proportional(3e-6)]
    for line in estimator.fit(seen).lines.values():
        assert min(line.energy) >= line.energy[-1] == 0


def test_work_line_recovers_four_coefficients():
    expected = np.array([2e-9, 5e-10, 1e-3, 0.2])
    networks = [*draw_networks(5), make_family("cnn5"), make_family("har")]
    fitted = LINEAR_WORK.fit(observe(networks, [count_columns(one) @ expected for one in networks]))
    assert fitted.lines["*"].energy == pytest.approx(expected, rel=1e-6)
    assert fitted.lines["*"].duration == pytest.approx(2 * expected, rel=1e-6)
    found = fitted.predict([make_family("lenet5")], [SETUP])
    assert found.energy_j[0] == pytest.approx(count_columns(make_family("lenet5")) @ expected)


def count_columns(network):
    work = network_work(network, SETUP).total
    return np.array([work.flops, work.size_bytes, work.launches, 1.0])


def test_constant_minimises_the_relative_error():
    energies_j = np.array([1.0, 1.2, 4.0])
    fitted = WholeNetworkEstimator("constant").fit(observe(draw_networks(3), energies_j))
    expected_j = (1 / energies_j).sum() / (1 / energies_j**2).sum()
    found = fitted.predict([make_family("cnn5")], [SETUP])
    assert found.energy_j[0] == pytest.approx(expected_j)


def test_few_networks_for_the_coefficients_widen_the_interval():
    seen = [
        replace(one, energy_j=one.energy_j * factor)
        for one, factor in zip(make_proportional(3e-9)[:4], (0.8, 1.1, 1.2, 0.9), strict=True)
    ]
    line = FLOPS.fit(seen).lines["*"]
    errors = [line.energy[0] * count_flops(one.trial.network) / one.energy_j - 1 for one in seen]
    assert line.sd_share == pytest.approx((np.sum(np.square(errors)) / 3) ** 0.5)


def test_flops_proposes_networks_of_its_target_and_then_stops():
    nets = tuple(draw_networks(9))
    target = Target(nets[0], SETUP, networks=nets)
    seen = []
    while (proposal := FLOPS.propose(target, seen)).trial is not None:
        assert proposal.trial.network in nets
        seen.append(Observation(proposal.trial, 1.0, 0.0, 1.0))
    assert len(seen) == proposal.points == 6


def test_whole_networks_are_preferred_to_variants():
    output = Network(draw_networks(1)[0].layers[-1:], Input((4,)))
    variant = Observation(Trial(output, SETUP), 9.0, 0.0, 9.0)
    fitted = FLOPS.fit([*make_proportional(2e-9), variant])
    assert fitted.lines["*"].count == 6
