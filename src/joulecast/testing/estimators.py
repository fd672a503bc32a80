"""What every estimator has to keep to, as tests for anybody who writes one.

    class TestMine(EstimatorContract):
        def make_estimator(self): return MyEstimator()

The suite brings observations of its own, from a simulated world without noise: short campaigns on a
small net and a few whole nets, so that every method finds something that it can use.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from joulecast.errors import MissingError
from joulecast.estimators.base import Estimator, Floats, Target
from joulecast.estimators.baselines.neuralpower import NeuralPowerEstimator
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.families import draw_family, make_family
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.simulation import SimulatedDevice, make_simulated_device

FAMILY = "lenet5:4,6,24,16"
SETUP = Setup(batch=10)


def observe(world: SimulatedDevice, trial: Trial, energy: bool = True) -> Observation:
    """What a perfect rig would see in a world."""
    cost = world.law(trial)
    return Observation(
        trial,
        energy_j=cost.energy_j if energy else None,
        energy_sd_j=0.005 * cost.energy_j if energy else None,
        duration_s=cost.duration_s,
        duration_sd_s=0.005 * cost.duration_s,
        count=3,
        provenance="simulated",
    )


def run_short_campaign(
    estimator: Estimator, target: Target, points: int, world: SimulatedDevice
) -> list[Observation]:
    """Observations of what an estimator asks for, one after the other."""
    seen: list[Observation] = []
    while len(seen) < points:
        proposal = estimator.propose(target, seen)
        if proposal.trial is None:
            break
        seen.append(observe(world, proposal.trial))
    return seen


@cache
def make_observations() -> tuple[Observation, ...]:
    """Variants, stages of single layers, whole nets, a time probe and a waiting device."""
    world = make_simulated_device(11, noise=0.0)
    target = Target(make_family(FAMILY), SETUP)
    seen = run_short_campaign(SubtractiveEstimator(), target, 30, world)
    seen += run_short_campaign(NeuralPowerEstimator(), target, 132, world)
    seen += [observe(world, Trial(network, SETUP)) for network in draw_networks(5, seed=1)]
    probe = observe(world, seen[3].trial, energy=False)
    return (*seen, probe, observe(world, Trial(Network(), Setup())))


def draw_networks(count: int, seed: int = 0) -> list[Network]:
    """Small random nets, none wider than what was profiled."""
    rng = random.Random(seed)
    return [
        draw_family("lenet5", lambda low, high: rng.randint(low, max(low, min(high, 4))))
        for _ in range(count)
    ]


class EstimatorContract:
    """Tests of any estimator; a subclass says how to make one."""

    strange_setup = Setup(batch=20, optimizer="adam")
    """A setup of which the suite's observations show nothing that the estimator could use."""

    tolerance_share = 1e-6
    """How far predictions may differ that ought to be the same but for rounding."""

    def make_estimator(self) -> Estimator:
        """An estimator to test."""
        raise NotImplementedError

    def predict(self, observations: Sequence[Observation], networks: Sequence[Network]) -> Floats:
        """Means after a fresh fit."""
        estimator = self.make_estimator()
        return estimator.predict(estimator.fit(observations), networks, SETUP).energy_j

    def test_fitted_numbers_survive_json_exactly(self) -> None:
        """They are kept in a store and sent to other machines."""
        estimator = self.make_estimator()
        fitted = estimator.fit(make_observations())
        again = json.loads(json.dumps(fitted))
        assert again == fitted
        one, two = (estimator.predict(f, draw_networks(3), SETUP) for f in (fitted, again))
        assert (one.energy_j == two.energy_j).all()
        assert one.energy_cov is not None and two.energy_cov is not None
        assert (one.energy_cov == two.energy_cov).all()

    def test_fitting_twice_gives_the_same(self) -> None:
        """No hidden state, no chance."""
        seen = make_observations()
        assert self.make_estimator().fit(seen) == self.make_estimator().fit(seen)

    def test_the_order_of_observations_does_not_matter(self) -> None:
        """A store may hand them over in any."""
        seen = list(make_observations())
        forward = self.predict(seen, draw_networks(4))
        random.Random(3).shuffle(seen)
        assert self.predict(seen, draw_networks(4)) == pytest.approx(
            forward, rel=self.tolerance_share
        )

    def test_twice_the_energy_gives_twice_the_estimate(self) -> None:
        """Joules or kilojoules, no unit is special."""
        seen = make_observations()
        doubled = [_scale(observation, 2.0) for observation in seen]
        expected = 2 * self.predict(seen, draw_networks(4))
        assert self.predict(doubled, draw_networks(4)) == pytest.approx(expected, rel=1e-3)

    def test_many_networks_at_once_are_as_each_alone(self) -> None:
        """Means and variances do not depend on what else was asked."""
        estimator, networks = self.make_estimator(), draw_networks(5)
        fitted = estimator.fit(make_observations())
        together = estimator.predict(fitted, networks, SETUP)
        for place, network in enumerate(networks):
            alone = estimator.predict(fitted, [network], SETUP)
            assert alone.energy_j[0] == pytest.approx(together.energy_j[place])
            assert alone.duration_s[0] == pytest.approx(together.duration_s[place])
            variance = together.energy_sd_j[place] ** 2
            assert alone.energy_sd_j[0] ** 2 == pytest.approx(variance, rel=1e-6)

    def test_the_covariance_is_one(self) -> None:
        """Symmetric, nowhere negative, and a network agrees with itself."""
        estimator, networks = self.make_estimator(), draw_networks(6)
        asked = [*networks, networks[0]]
        cov = estimator.predict(estimator.fit(make_observations()), asked, SETUP).energy_cov
        assert cov is not None
        assert cov == pytest.approx(cov.T)
        assert np.linalg.eigvalsh(cov).min() >= -1e-9 * np.trace(cov)
        assert cov[0, -1] == pytest.approx(cov[0, 0])

    def test_layers_add_up_to_the_network(self) -> None:
        """What is shown by layer is all there is."""
        estimator, networks = self.make_estimator(), draw_networks(4)
        answer = estimator.predict(estimator.fit(make_observations()), networks, SETUP)
        for place, network in enumerate(networks):
            rows = answer.layers[place]
            assert [row.kind for row in rows] == [layer.kind for layer in network.layers]
            assert sum(row.energy_j for row in rows) == pytest.approx(answer.energy_j[place])
            assert 0.0 <= answer.unseen_share[place] <= 1.0

    def test_a_layer_that_is_called_twice_costs_more(self) -> None:
        """Calls count, not modules; what is done once a step, an update, may count once."""
        estimator, network = self.make_estimator(), draw_networks(1)[0]
        layers = list(network.layers)
        layers[2] = replace(layers[2], calls=2)
        fitted = estimator.fit(make_observations())
        twice = replace(network, layers=tuple(layers))
        answer = estimator.predict(fitted, [network, twice], SETUP)
        once_j = answer.layers[0][2].energy_j
        assert 0 < answer.energy_j[1] - answer.energy_j[0] <= once_j * (1 + 1e-9)

    def test_it_says_that_it_knows_nothing(self) -> None:
        """An empty profile is an error that says what to do, not a number."""
        idle = make_observations()[-1]
        assert not self.make_estimator().uses(idle)
        for nothing in ([], [idle]):
            with pytest.raises(MissingError, match=r"profile|measure"):
                self.make_estimator().fit(nothing)

    def test_a_setup_that_was_never_seen_is_unseen(self) -> None:
        """It guesses, and says that it does."""
        estimator, networks = self.make_estimator(), draw_networks(2)
        fitted = estimator.fit(make_observations())
        answer = estimator.predict(fitted, networks, self.strange_setup)
        assert answer.unseen_share == (1.0, 1.0)
        assert (answer.energy_j > 0).all()

    def test_a_proposal_is_something_new_or_a_reason(self) -> None:
        """And the same one for the same observations."""
        target = Target(make_family(FAMILY), SETUP)
        seen = make_observations()[:12]
        one, two = (self.make_estimator().propose(target, seen) for _ in range(2))
        assert one == two
        assert one.why
        assert one.trial is None or one.trial.key not in {known.trial.key for known in seen}


def _scale(seen: Observation, factor: float) -> Observation:
    if seen.energy_j is None or seen.energy_sd_j is None:
        return seen
    return replace(seen, energy_j=factor * seen.energy_j, energy_sd_j=factor * seen.energy_sd_j)
