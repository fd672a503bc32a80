"""FLOPs-proportional: one factor, and nothing else."""

from dataclasses import replace

import pytest

from joulecast.estimators.flops import FlopsEstimator
from joulecast.families import make_family
from joulecast.kinds import network_work
from joulecast.records import How, Observation, Setup, Trial
from joulecast.testing.estimators import SETUP, EstimatorContract, draw_networks


class TestFlops(EstimatorContract):
    def make_estimator(self) -> FlopsEstimator:
        return FlopsEstimator()


def proportional(joules_per_flop, how=How(), setup=SETUP):
    seen = []
    for network in draw_networks(6):
        flops = network_work(network, setup).total.flops * how.steps
        seen.append(Observation(Trial(network, setup, how), joules_per_flop * flops, 0.0, flops))
    return seen


def test_it_finds_the_factor_of_a_device_that_has_one():
    fitted = FlopsEstimator().fit(proportional(3e-9))
    answer = FlopsEstimator().predict(fitted, [make_family("cnn5")], SETUP)
    flops = network_work(make_family("cnn5"), SETUP).total.flops
    assert answer.energy_j[0] == pytest.approx(3e-9 * flops)
    assert answer.duration_s[0] == pytest.approx(flops)
    assert answer.energy_cov[0, 0] == pytest.approx(0.0, abs=1e-12)


def test_energy_of_many_steps_counts_per_step():
    one, many = (FlopsEstimator().fit(proportional(1e-9, how)) for how in (How(), How(steps=50)))
    nets = draw_networks(3)
    answers = [FlopsEstimator().predict(fitted, nets, SETUP).energy_j for fitted in (one, many)]
    assert answers[0] == pytest.approx(answers[1])


def test_it_takes_no_part_of_a_step():
    seen = proportional(1e-9, How(stage="forward"))[0]
    assert not FlopsEstimator().uses(seen)
    assert FlopsEstimator().uses(replace(seen, trial=replace(seen.trial, how=How())))


def test_setups_have_factors_of_their_own():
    other = Setup(batch=64)
    fitted = FlopsEstimator().fit(proportional(1e-9) + proportional(5e-9, setup=other))
    network = draw_networks(1)
    for setup, factor in ((SETUP, 1e-9), (other, 5e-9)):
        flops = network_work(network[0], setup).total.flops
        answer = FlopsEstimator().predict(fitted, network, setup)
        assert answer.energy_j[0] == pytest.approx(factor * flops)
