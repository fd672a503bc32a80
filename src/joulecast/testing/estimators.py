"""Tests that every estimator has to pass, for anyone who writes one.

    class TestMine(EstimatorContract):
        def make_estimator(self): return MyEstimator()

The suite brings its own observations, from a simulated device without noise: short campaigns on a
small network and a few whole networks, so that every estimator finds something it can use.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest

from joulecast.estimators.base import Estimator, Fitted, Floats, Target
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.families import draw_family, make_family
from joulecast.operators import layer_work
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.simulation import SimulatedDevice, make_simulated_device
from joulecast.system.errors import MissingError
from joulecast.variants import make_isolated_trial, match_precision, split_network

FAMILY = "lenet5:4,6,24,16"
SETUP = Setup(batch=10)


def observe(device: SimulatedDevice, trial: Trial, with_energy: bool = True) -> Observation:
    """Return what a perfect measurement of a trial on a simulated device would show."""
    cost = device.true_cost(trial)
    return Observation(
        trial,
        energy_j=cost.energy_j if with_energy else None,
        energy_sd_j=0.005 * cost.energy_j if with_energy else None,
        duration_s=cost.duration_s,
        duration_sd_s=0.005 * cost.duration_s,
        count=3,
        provenance="simulated",
    )


def run_short_campaign(
    estimator: Estimator, target: Target, points: int, device: SimulatedDevice
) -> list[Observation]:
    """Return observations of the trials that an estimator proposes, one after the other."""
    seen: list[Observation] = []
    while len(seen) < points:
        proposal = estimator.propose(target, seen)
        if proposal.trial is None:
            break
        seen.append(observe(device, proposal.trial))
    return seen


@cache
def make_observations() -> tuple[Observation, ...]:
    """Return variants, stages of isolated layers, whole networks, a probe and an idle device."""
    device = make_simulated_device(11, noise=0.0)
    target = Target(make_family(FAMILY), SETUP)
    seen = run_short_campaign(SubtractiveEstimator(), target, 30, device)
    seen += [observe(device, trial) for trial in list_stage_trials(draw_networks(16, seed=2))]
    seen += [observe(device, Trial(network, SETUP)) for network in draw_networks(5, seed=1)]
    probe = observe(device, seen[3].trial, with_energy=False)
    return (*seen, probe, observe(device, Trial(Network(), Setup())))


def list_stage_trials(networks: Sequence[Network]) -> list[Trial]:
    """Return forward, backward and update of the isolated layers of networks."""
    trials = {}
    for part in dict.fromkeys(one.block for network in networks for one in split_network(network)):
        for stage in ("forward", "backward", "update"):
            if any(getattr(layer_work(layer, SETUP), stage).launches for layer in part.layers):
                trial = make_isolated_trial(match_precision(part, SETUP), SETUP, stage=stage)
                trials[trial.key] = trial
    return list(trials.values())


def draw_networks(count: int, seed: int = 0) -> list[Network]:
    """Draw small random networks, none wider than what was profiled."""
    rng = random.Random(seed)
    return [
        draw_family("lenet5", lambda low, high: rng.randint(low, max(low, min(high, 4))))
        for _ in range(count)
    ]


class EstimatorContract:
    """Tests of any estimator; a subclass implements ``make_estimator``."""

    unseen_setup = Setup(batch=20, optimizer="adam")
    """A setup about which the suite's observations tell the estimator nothing."""

    tolerance_share = 1e-6
    """Largest relative difference between predictions that should agree up to rounding."""

    restart_tolerance_share = 1e-6
    """Largest relative difference between a fit from scratch and one that starts from another."""

    _fitted: ClassVar[Fitted | None] = None

    def __init_subclass__(cls) -> None:
        cls._fitted = None

    def make_estimator(self) -> Estimator:
        """Return the estimator to test."""
        raise NotImplementedError

    def fit(self) -> Fitted:
        """Return a fit to the suite's observations, made once for all tests."""
        cls = type(self)
        if cls._fitted is None:
            cls._fitted = self.make_estimator().fit(make_observations())
        return cls._fitted

    def predict(self, observations: Sequence[Observation], networks: Sequence[Network]) -> Floats:
        """Return the mean energies of a new fit."""
        fitted = self.make_estimator().fit(observations)
        return fitted.predict(networks, [SETUP] * len(networks)).energy_j

    def test_fit_is_restored_exactly_from_json(self) -> None:
        """Fits are kept in a store and sent to other machines."""
        fitted, networks = self.fit(), draw_networks(3)
        data = json.loads(json.dumps(fitted.to_dict()))
        restored = self.make_estimator().load(data)
        assert data == fitted.to_dict() == restored.to_dict()
        assert data.get("version", 1) == self.make_estimator().version
        setups = [SETUP] * len(networks)
        one, two = (fit.predict(networks, setups, joint=True) for fit in (fitted, restored))
        assert (one.energy_j == two.energy_j).all()
        assert one.energy_cov is not None and two.energy_cov is not None
        assert (one.energy_cov == two.energy_cov).all()

    def test_fitting_twice_gives_the_same_fit(self) -> None:
        """There is no hidden state and no randomness."""
        again = self.make_estimator().fit(make_observations())
        assert again.to_dict() == self.fit().to_dict()

    def test_fit_counts_the_observations_it_uses(self) -> None:
        """The count tells whether a stored fit is out of date."""
        used = sum(map(self.make_estimator().uses, make_observations()))
        assert self.fit().observation_count == used

    def test_order_of_observations_does_not_matter(self) -> None:
        """A store may return them in any order."""
        seen, networks = list(make_observations()), draw_networks(4)
        expected = self.fit().predict(networks, [SETUP] * len(networks)).energy_j
        random.Random(3).shuffle(seen)
        assert self.predict(seen, networks) == pytest.approx(expected, rel=self.tolerance_share)

    def test_twice_the_energy_gives_twice_the_estimate(self) -> None:
        """Joules or kilojoules: no unit is special."""
        networks = draw_networks(4)
        doubled = [_scale(observation, 2.0) for observation in make_observations()]
        expected = 2 * self.fit().predict(networks, [SETUP] * len(networks)).energy_j
        assert self.predict(doubled, networks) == pytest.approx(expected, rel=1e-3)

    def test_networks_together_are_predicted_as_each_alone(self) -> None:
        """Means and variances do not depend on the other networks and setups of a call."""
        fitted, networks = self.fit(), draw_networks(6)
        setups = [SETUP, self.unseen_setup] * 3
        together = fitted.predict(networks, setups)
        for at, (network, setup) in enumerate(zip(networks, setups, strict=True)):
            alone = fitted.predict([network], [setup])
            assert alone.energy_j[0] == pytest.approx(together.energy_j[at])
            assert alone.duration_s[0] == pytest.approx(together.duration_s[at])
            variance = together.energy_sd_j[at] ** 2
            assert alone.energy_sd_j[0] ** 2 == pytest.approx(variance, rel=1e-6)
            assert alone.unseen_share[0] == pytest.approx(together.unseen_share[at])

    def test_fit_may_start_from_an_earlier_one(self) -> None:
        """A campaign fits after every measurement; the result is about that of a fit from scratch.

        An earlier fit to the same observations changes nothing.
        """
        seen, networks = make_observations(), draw_networks(4)
        setups = [SETUP] * len(networks)
        estimator = self.make_estimator()
        some = [observation for at, observation in enumerate(seen) if at % 10]
        extended = estimator.fit(seen, estimator.fit(some))
        expected = self.fit().predict(networks, setups).energy_j
        share = self.restart_tolerance_share
        assert extended.predict(networks, setups).energy_j == pytest.approx(expected, rel=share)
        assert extended.observation_count == self.fit().observation_count
        assert estimator.fit(seen, self.fit()).to_dict() == self.fit().to_dict()

    def test_covariance_is_valid(self) -> None:
        """It is symmetric and positive semi-definite, and equal networks have equal errors."""
        networks = draw_networks(6)
        networks.append(networks[0])
        setups = [SETUP] * len(networks)
        assert self.fit().predict(networks, setups).energy_cov is None
        found = self.fit().predict(networks, setups, joint=True)
        cov = found.energy_cov
        assert cov is not None
        assert np.diag(cov) == pytest.approx(found.energy_sd_j**2)
        assert cov == pytest.approx(cov.T)
        assert np.linalg.eigvalsh(cov).min() >= -1e-9 * np.trace(cov)
        assert cov[0, -1] == pytest.approx(cov[0, 0])

    def test_layers_sum_to_the_network(self) -> None:
        """The energies of the layers account for the whole step."""
        networks = draw_networks(4)
        found = self.fit().predict(networks, [SETUP] * len(networks), per_layer=True)
        for at, network in enumerate(networks):
            rows = found.layers[at]
            assert [row.kind for row in rows] == [layer.kind for layer in network.layers]
            assert sum(row.energy_j for row in rows) == pytest.approx(found.energy_j[at])
            assert 0.0 <= found.unseen_share[at] <= 1.0

    def test_layer_that_is_called_twice_costs_more(self) -> None:
        """Calls count, not modules; what is done once per step, the update, may count once."""
        network = draw_networks(1)[0]
        layers = list(network.layers)
        layers[2] = replace(layers[2], calls=2)
        networks = [network, replace(network, layers=tuple(layers))]
        found = self.fit().predict(networks, [SETUP] * 2, per_layer=True)
        once_j = found.layers[0][2].energy_j
        assert 0 < found.energy_j[1] - found.energy_j[0] <= once_j * (1 + 1e-9)

    def test_fitting_nothing_is_an_error(self) -> None:
        """The error says what to do."""
        idle = make_observations()[-1]
        assert not self.make_estimator().uses(idle)
        for nothing in ([], [idle]):
            with pytest.raises(MissingError, match=r"profile|measure"):
                self.make_estimator().fit(nothing)

    def test_setup_that_was_never_measured_is_unseen(self) -> None:
        """The estimator extrapolates, and says so."""
        found = self.fit().predict(draw_networks(2), [self.unseen_setup] * 2)
        assert found.unseen_share == (1.0, 1.0)
        assert (found.energy_j > 0).all()

    def test_fitted_items_have_labels_and_counts(self) -> None:
        """What ``joulecast profiles show`` lists; a count is 0 if no point shows the item alone."""
        for item in self.fit().describe():
            assert item.label and min(item.energy_points, item.duration_points) >= 0

    @pytest.mark.parametrize("acquisition", ["target", "probe"])
    def test_proposal_is_a_new_trial_or_a_reason_to_stop(self, acquisition: str) -> None:
        """Equal observations give equal proposals."""
        target = Target(make_family(FAMILY), SETUP, acquisition)
        seen = make_observations()[:12]
        one, two = (self.make_estimator().propose(target, seen) for _ in range(2))
        assert one == two
        assert one.reason
        known = {observation.trial.key for observation in seen}
        assert one.trial is None or one.trial.key not in known
        assert not one.probes or (acquisition == "probe" and one.trial in one.probes)
        again = self.make_estimator().propose(target, seen, one.fitted)
        assert (again.trial, again.reason) == (one.trial, one.reason)


def _scale(seen: Observation, factor: float) -> Observation:
    if seen.energy_j is None or seen.energy_sd_j is None:
        return seen
    return replace(seen, energy_j=factor * seen.energy_j, energy_sd_j=factor * seen.energy_sd_j)
