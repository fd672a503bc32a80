"""Evaluations: nothing is measured twice, and no test network is used for fitting."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from joulecast.errors import (
    ContaminatedError,
    InputError,
    MissingError,
    NetError,
    NotTrainingError,
)
from joulecast.estimators import ESTIMATORS
from joulecast.estimators.base import Prediction, Proposal
from joulecast.measurer import MeasureClock, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store
from joulecast.uses.evaluate import (
    EvaluationPlan,
    evaluate,
    evaluate_stored,
)
from joulecast.uses.evaluate.campaign_budget import sum_work_s
from joulecast.uses.evaluate.evaluation_plan import draw_nets

SETUP = Setup(batch=8)
DEVICE = make_simulated_device(5, noise=0.0)


class ExactEstimator:
    """Returns the true energy if it has probes, and 1.5 times the true energy without them."""

    name = "exact"
    version = 1
    uses_anchors = False

    def uses(self, observation):
        return bool(observation.trial.network.layers)

    def propose(self, target, observations, fitted=None):
        tried = {one.trial.key for one in observations}
        trials = tuple(Trial(network, target.setup) for network in target.networks)
        left = [trial for trial in trials if trial.key not in tried]
        reason = "a whole network" if left else "all networks are measured"
        probes = trials if target.acquisition == "probe" else ()
        return Proposal(left[0] if left else None, 0.0, reason, probes=probes)

    def fit(self, observations, fitted=None):
        if not any(map(self.uses, observations)):
            raise MissingError("no observations: measure a network first")
        return FittedExact(any(one.energy_j is None for one in observations))

    def load(self, data):
        return FittedExact(data["has_probes"])


@dataclass(frozen=True)
class FittedExact:
    has_probes: bool
    observation_count: int = 0

    def predict(self, networks, setups, *, joint=False, per_layer=False):
        pairs = zip(networks, setups, strict=True)
        costs = [DEVICE.true_cost(Trial(network, setup)) for network, setup in pairs]
        factor = 1.0 if self.has_probes else 1.5
        energy_j = np.array([factor * cost.energy_j for cost in costs])
        duration_s = np.array([cost.duration_s for cost in costs])
        no_layers = ((),) * len(networks)
        unseen = (0.0,) * len(networks)
        return Prediction(energy_j, 0.01 * energy_j, None, duration_s, no_layers, unseen)

    def describe(self):
        return ()

    def to_dict(self):
        return {"has_probes": self.has_probes}


with pytest.MonkeyPatch.context() as patch:
    patch.setitem(ESTIMATORS, "exact", ExactEstimator)
    PLAN = EvaluationPlan(
        "lenet5", SETUP, estimators=("exact", "exact-noprobe"), nets=4, seconds=20.0
    )


@pytest.fixture(autouse=True)
def exact_estimator(monkeypatch):
    monkeypatch.setitem(ESTIMATORS, "exact", ExactEstimator)


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite") as opened:
        yield opened


def make_simulated_measurer(runtime=SimulatedRuntime, noise=0.0, **options):
    device = make_simulated_device(5, noise=noise, **options)
    clock = MeasureClock(device.now, device.sleep, device.now)
    return make_measurer(
        runtime(device), SimulatedMeter(device, update_interval_s=0.0), rounds=2, clock=clock
    )


def run(store, plan=PLAN, **options):
    with make_simulated_measurer(**options) as measurer:
        return evaluate(measurer, store, plan)


def load_only_profile(store):
    """Return the only profile of a store, with all observations."""
    (summary,) = [one for one in store.list_profiles() if not one.shipped]
    return store.load_profile(summary.key)


def count_trials(store):
    """Return how often each trial was run by run tag, without idle measurements."""
    seen = load_only_profile(store).observations
    return Counter((one.run, one.trial.key) for one in seen if one.trial.network.layers)


# -- a complete evaluation --


def test_exact_estimator_has_no_error_and_comes_first(store):
    result = run(store)
    best, other = result.scores
    assert (best.estimator, other.estimator) == ("exact", "exact-noprobe")
    assert best.mape_percent < 0.5 and best.coverage95_percent == 100.0
    assert best.time_mape_percent < 0.5
    assert other.mape_percent == pytest.approx(50.0, abs=1.0) == other.bias_percent
    assert other.coverage95_percent == 0.0
    assert result.noise_percent < 0.5 and len(result.nets) == 4
    assert not result.left_out and not result.missing
    assert result.provenance == "simulated"


def test_device_time_includes_probes_of_the_estimator(store):
    result = run(store)
    kept = load_only_profile(store).observations
    spent = Counter()
    for seen in kept:
        spent[seen.run.partition(".")[2]] += seen.cost_s
    with_probes, without = (score.device_seconds for score in result.scores)
    assert without == pytest.approx(spent["exact"])
    assert with_probes == pytest.approx(spent["exact"] + spent["exact.probe"])
    assert result.scores[0].points - result.scores[1].points == len(result.nets)
    assert without <= PLAN.seconds + 2.0


def test_campaigns_do_not_measure_test_networks(store):
    result = run(store)
    tests = {net.name for net in result.nets}
    by_run: dict[str, set[str]] = {}
    for seen in load_only_profile(store).observations:
        by_run.setdefault(seen.run, set()).add(seen.trial.network.name)
        probe = seen.run.endswith(".probe")
        assert not (probe and seen.energy_j is not None)
    runs = {f"{result.name}.{who}" for who in ("test1", "test2", "exact", "exact.probe")}
    assert set(by_run) == runs
    assert by_run[f"{result.name}.test1"] == by_run[f"{result.name}.test2"] == tests
    assert not tests & by_run[f"{result.name}.exact"]


def test_test_network_in_a_campaign_is_not_used_for_fitting(store):
    result = run(store)
    kept = load_only_profile(store)
    energies = [one for one in kept.observations if one.run.endswith(".test1")]
    leaked = [replace(one, run=f"{result.name}.exact", cost_s=0.0) for one in energies]
    first, *rest = kept.observations
    again = evaluate_stored(replace(kept, observations=(first, *leaked, *rest)), PLAN)
    assert [score.points for score in again.scores] == [score.points for score in result.scores]


def test_stored_evaluation_equals_the_measured_one(store):
    result = run(store)
    assert evaluate_stored(load_only_profile(store), PLAN) == result
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == result.to_dict()


def test_baselines_of_whole_networks_share_one_campaign(store):
    baselines = ("work-linear", "flops-linear", "flops", "constant")
    plan = replace(PLAN, estimators=baselines)
    result = run(store, plan)
    roles = {one.run.partition(".")[2] for one in load_only_profile(store).observations}
    assert roles == {"test1", "test2", "flops"}
    assert {score.estimator for score in result.scores} == set(baselines)
    assert {score.points for score in result.scores} == {6}
    assert len({score.device_seconds for score in result.scores}) == 1
    assert not result.missing
    alone = evaluate_stored(load_only_profile(store), replace(plan, estimators=("constant",)))
    assert alone.scores == tuple(s for s in result.scores if s.estimator == "constant")


def test_finished_evaluation_measures_nothing(store):
    result = run(store)
    before = load_only_profile(store)

    class UnusedRuntime(SimulatedRuntime):
        def prepare(self, trial):
            raise AssertionError("nothing is left to measure")

    assert run(store, runtime=UnusedRuntime) == result
    assert load_only_profile(store) == before


def test_fits_of_the_profile_do_not_change(store):
    run(store)
    assert load_only_profile(store).fits == {}


# -- interruptions --


class InterruptedStore:
    """A store that raises KeyboardInterrupt after some observations."""

    def __init__(self, store, left):
        self._store, self._left = store, left

    def load_observations(self, key):
        return self._store.load_observations(key)

    def add_observation(self, seen):
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        self._store.add_observation(seen)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ESTIMATORS, "exact", ExactEstimator)
        with open_store(tmp_path_factory.mktemp("whole") / "store.sqlite") as store:
            result = run(store)
            return result, count_trials(store)


# During the first pass, the campaign, the probes and the second pass.
@pytest.mark.parametrize("left", [0, 3, 8, 9, 11, 14, 17, 20])
def test_interrupted_evaluation_resumes_and_measures_nothing_twice(store, uninterrupted, left):
    whole, work = uninterrupted
    assert left < sum(work.values())
    with pytest.raises(KeyboardInterrupt):
        run(InterruptedStore(store, left))
    before = load_only_profile(store).observations if left else ()
    assert len(before) == left
    result = run(store)
    assert load_only_profile(store).observations[:left] == before
    assert count_trials(store) == work
    assert [score.points for score in result.scores] == [score.points for score in whole.scores]


def test_more_networks_and_seconds_extend_an_evaluation(store):
    few = run(store, replace(PLAN, nets=2, seconds=10.0))
    before = count_trials(store)
    more = run(store)
    assert more.name == few.name and {net.name for net in few.nets} < {n.name for n in more.nets}
    assert before <= count_trials(store)
    # The smaller evaluation is still part of the larger one.
    again = evaluate_stored(load_only_profile(store), replace(PLAN, nets=2, seconds=10.0))
    assert again.scores == few.scores and again.nets == few.nets


def test_estimator_added_later_reuses_the_measured_networks(store):
    run(store, replace(PLAN, estimators=("exact-noprobe",)))
    assert not any("probe" in run for run, _ in count_trials(store))
    before = count_trials(store)
    result = run(store)
    new = count_trials(store) - before
    assert {name for name, _ in new} == {f"{result.name}.exact.probe"}


# -- missing and refused measurements --


def test_missing_measurements_are_listed(store):
    with pytest.raises(KeyboardInterrupt):
        run(InterruptedStore(store, 11))
    result = evaluate_stored(load_only_profile(store), PLAN)
    said = "; ".join(result.missing)
    assert "pass 2 of 4 of 4 test nets" in said and "4 of 4 time probes of exact" in said
    assert "the rest of the campaign of exact" in said
    assert result.noise_percent is None


def test_empty_store_error_says_what_to_do(store):
    run(store)
    with pytest.raises(MissingError, match="without --offline"):
        evaluate_stored(load_only_profile(store), replace(PLAN, seed=2))
    with pytest.raises(MissingError, match="no observations"):
        kept = load_only_profile(store)
        tests = tuple(seen for seen in kept.observations if "test" in seen.run)
        evaluate_stored(replace(kept, observations=tests), PLAN)


def make_refusing_runtime(error, where):
    class RefusingRuntime(SimulatedRuntime):
        def prepare(self, trial):
            if where(trial.network):
                raise error
            return super().prepare(trial)

    return RefusingRuntime


def test_refused_network_is_listed_and_the_others_are_scored(store):
    bad = draw_nets(PLAN).test[1]
    runtime = make_refusing_runtime(
        NotTrainingError("no weight moved"), lambda network: network == bad
    )
    result = run(store, runtime=runtime)
    assert len(result.nets) == 3 and bad.name not in {net.name for net in result.nets}
    assert any(bad.name in line and "no weight moved" in line for line in result.left_out)
    assert result.scores[0].nets == 3
    # Once it can be measured, the rest is not measured again.
    before = count_trials(store)
    assert len(run(store).nets) == 4
    assert {key for _, key in count_trials(store) - before} == {Trial(bad, SETUP).key}


def test_disturbed_windows_do_not_end_the_evaluation(store):
    bad, disturbed = draw_nets(PLAN).test[0], [2]

    def disturb(network):
        if network != bad or not disturbed[0]:
            return False
        disturbed[0] -= 1
        return True

    result = run(store, runtime=make_refusing_runtime(ContaminatedError("other load"), disturb))
    assert len(result.nets) == 4
    assert any("a window of" in line and "other load" in line for line in result.left_out)


def test_disturbed_campaign_is_scored_by_its_observations(store):
    learn = draw_nets(PLAN).campaign[1]
    runtime = make_refusing_runtime(
        ContaminatedError("other load"), lambda network: network == learn
    )
    result = run(store, runtime=runtime)
    assert any("campaign of exact ended early" in line for line in result.left_out)
    assert result.scores[1].points == 1


def test_device_that_refuses_everything_gives_the_reason(store):
    runtime = make_refusing_runtime(NetError("there is no device"), lambda network: True)
    with pytest.raises(MissingError, match="there is no device"):
        run(store, runtime=runtime)


# -- probes of the additive estimator --

ADDITIVE_PLAN = EvaluationPlan("cnn5", SETUP, estimators=("additive",), nets=3, seconds=8.0)


class GraphRuntime(SimulatedRuntime):
    """A runtime that captures graphs and may refuse one trial."""

    refused: str = ""

    def __init__(self, device):
        super().__init__(device, ("eager", "graph"))

    def prepare(self, trial):
        if trial.key == self.refused:
            raise NetError("no kernel for this layer")
        return super().prepare(trial)


def list_energy_probes(store):
    """Return probes that measured energy after all layers had been timed."""
    seen = load_only_profile(store).observations
    return [one for one in seen if one.run.endswith(".probe") and one.energy_j is not None]


def test_repeated_evaluation_gives_the_same_scores(store):
    first = run(store, ADDITIVE_PLAN, runtime=GraphRuntime)
    kept = load_only_profile(store).observations
    assert 0 < len(list_energy_probes(store)) <= 8
    again = run(store, ADDITIVE_PLAN, runtime=GraphRuntime)
    assert load_only_profile(store).observations == kept
    assert again.scores == first.scores


def test_refused_layer_does_not_prevent_other_probes(store, tmp_path):
    run(store, ADDITIVE_PLAN, runtime=GraphRuntime)
    probes = [one for one in load_only_profile(store).observations if one.run.endswith(".probe")]
    timed = next(one for one in probes if one.energy_j is None)

    class RefusingRuntime(GraphRuntime):
        refused = timed.trial.key

    with open_store(tmp_path / "other.sqlite") as other:
        result = run(other, ADDITIVE_PLAN, runtime=RefusingRuntime)
        assert any("no kernel" in line for line in result.left_out)
        assert list_energy_probes(other)


def test_units_of_a_device_are_not_mixed(store):
    run(store)
    with make_simulated_measurer() as measurer:
        measurer.runtime.device = replace(measurer.runtime.device, unit="another")
        with pytest.raises(InputError, match="another unit"):
            evaluate(measurer, store, PLAN)


def test_single_estimator_can_have_its_own_seconds(store):
    plan = replace(PLAN, budgets=(("exact", 4.0),))
    assert (plan.get_seconds("exact-noprobe"), plan.get_seconds("flops")) == (4.0, 20.0)
    run(store, plan)
    seen = [one for one in load_only_profile(store).observations if one.run.endswith(".exact")]
    assert sum_work_s(seen) <= 4.0
