"""FLOPs-proportional: one factor, and nothing else."""

from dataclasses import replace

import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.baselines.flops import FlopsEstimator, LinearFlopsEstimator
from joulecast.families import make_family
from joulecast.kinds import network_work
from joulecast.records import Execution, Input, Network, Observation, Setup, Trial
from joulecast.testing.estimators import SETUP, EstimatorContract, draw_networks


class TestFlops(EstimatorContract):
    def make_estimator(self) -> FlopsEstimator:
        return FlopsEstimator()


class TestLinear(EstimatorContract):
    def make_estimator(self) -> LinearFlopsEstimator:
        return LinearFlopsEstimator()

    def test_a_layer_that_is_called_twice_costs_more(self) -> None:
        """Nets that wait for their host cost the same whatever they compute: the line is flat."""
        fitted = LinearFlopsEstimator().fit(proportional(3e-9))
        once = draw_networks(1)[0]
        layers = [replace(once.layers[0], calls=2), *once.layers[1:]]
        twice = replace(once, layers=tuple(layers))
        answer = fitted.predict([once, twice], [SETUP] * 2)
        assert answer.energy_j[1] > answer.energy_j[0]


def proportional(joules_per_flop, execution=Execution(), setup=SETUP):
    seen = []
    for network in draw_networks(6):
        flops = network_work(network, setup).total.flops * execution.steps
        seen.append(
            Observation(Trial(network, setup, execution), joules_per_flop * flops, 0.0, flops)
        )
    return seen


def test_it_finds_the_factor_of_a_device_that_has_one():
    fitted = FlopsEstimator().fit(proportional(3e-9))
    answer = fitted.predict([make_family("cnn5")], [SETUP])
    flops = network_work(make_family("cnn5"), SETUP).total.flops
    assert answer.energy_j[0] == pytest.approx(3e-9 * flops)
    assert answer.duration_s[0] == pytest.approx(flops)
    assert answer.energy_cov[0, 0] == pytest.approx(0.0, abs=1e-12)


def test_energy_of_many_steps_counts_per_step():
    one, many = (
        FlopsEstimator().fit(proportional(1e-9, how)) for how in (Execution(), Execution(steps=50))
    )
    nets = draw_networks(3)
    answers = [fitted.predict(nets, [SETUP] * len(nets)).energy_j for fitted in (one, many)]
    assert answers[0] == pytest.approx(answers[1])


def test_it_takes_no_part_of_a_step():
    seen = proportional(1e-9, Execution(stage="forward"))[0]
    assert not FlopsEstimator().uses(seen)
    assert FlopsEstimator().uses(replace(seen, trial=replace(seen.trial, execution=Execution())))


def test_setups_have_factors_of_their_own():
    other = Setup(batch=64)
    fitted = FlopsEstimator().fit(proportional(1e-9) + proportional(5e-9, setup=other))
    network = draw_networks(1)
    for setup, factor in ((SETUP, 1e-9), (other, 5e-9)):
        flops = network_work(network[0], setup).total.flops
        answer = fitted.predict(network, [setup] * len(network))
        assert answer.energy_j[0] == pytest.approx(factor * flops)


def test_a_line_finds_what_comes_on_top():
    seen = [replace(one, energy_j=one.energy_j + 0.5) for one in proportional(3e-9)]
    fitted = LinearFlopsEstimator().fit(seen)
    network = make_family("cnn5")
    flops = network_work(network, SETUP).total.flops
    answer = fitted.predict([network], [SETUP])
    assert answer.energy_j[0] == pytest.approx(3e-9 * flops + 0.5)


def test_a_line_never_begins_below_zero():
    seen = [replace(one, energy_j=one.energy_j**1.3) for one in proportional(3e-6)]
    (row,) = {row["offset_j"] for row in LinearFlopsEstimator().fit(seen)["rows"].values()}
    assert row == 0.0


def test_it_asks_for_whole_nets_of_its_target_and_then_stops():
    nets = tuple(draw_networks(9))
    target = Target(nets[0], SETUP, networks=nets)
    seen = []
    while (proposal := FlopsEstimator().propose(target, seen)).trial is not None:
        assert proposal.trial.network in nets
        seen.append(Observation(proposal.trial, 1.0, 0.0, 1.0))
    assert len(seen) == proposal.points == 6


def test_whole_nets_go_before_variants():
    output = Network(draw_networks(1)[0].layers[-1:], Input((4,)))
    variant = Observation(Trial(output, SETUP), 9.0, 0.0, 9.0)
    assert FlopsEstimator().fit([*proportional(2e-9), variant])["rows"]["*"]["n"] == 6
