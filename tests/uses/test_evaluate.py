"""Evaluations: nothing is measured twice, no test net is learnt from, scores mean something."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import (
    ContaminatedError,
    InputError,
    MissingError,
    NetError,
    NotTrainingError,
)
from joulecast.estimators import ESTIMATORS, make_interval
from joulecast.estimators.base import Prediction, Proposal
from joulecast.families import FAMILIES
from joulecast.measurer import make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Observation, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.store import open_store
from joulecast.uses.evaluate import (
    NetEstimate,
    NetResult,
    EvaluationPlan,
    evaluate,
    evaluate_stored,
    list_estimators,
    name_evaluation,
)
from joulecast.uses.evaluate.evaluation_log import cut_to_budget, is_budget_spent, sum_work_s
from joulecast.uses.evaluate.evaluation_plan import draw_nets
from joulecast.uses.evaluate.scores import compute_noise_percent, score_estimator
from joulecast.simulation import make_simulated_device

SETUP = Setup(batch=8)
WORLD = make_simulated_device(5, noise=0.0)


class Toy:
    """Knows the law of the world: right with probes, half as much again without them."""

    name = "toy"

    def uses(self, observation):
        return bool(observation.trial.network.layers)

    def propose(self, target, observations):
        tried = {seen.trial.key for seen in observations}
        trials = (Trial(network, target.setup) for network in target.networks)
        left = [trial for trial in trials if trial.key not in tried]
        return Proposal(left[0] if left else None, 0.0, "a whole net" if left else "all are known")

    def list_probes(self, target, observations):
        return tuple(Trial(network, target.setup) for network in target.networks)

    def fit(self, observations):
        if not any(map(self.uses, observations)):
            raise MissingError("nothing was seen: measure a net first")
        return {"probed": any(seen.energy_j is None for seen in observations)}

    def predict(self, fitted, networks, setup, joint=True):
        laws = [WORLD.law(Trial(network, setup)) for network in networks]
        factor = 1.0 if fitted["probed"] else 1.5
        energy = np.array([factor * law.energy_j for law in laws])
        times = np.array([law.duration_s for law in laws])
        nothing = ((),) * len(networks)
        return Prediction(energy, 0.01 * energy, None, times, nothing, (0.0,) * len(networks))


with pytest.MonkeyPatch.context() as while_toy_is_known:
    while_toy_is_known.setitem(ESTIMATORS, "toy", Toy)
    PLAN = EvaluationPlan("lenet5", SETUP, estimators=("toy", "toy-noprobe"), nets=4, seconds=20.0)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(ESTIMATORS, "toy", Toy)


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite") as opened:
        yield opened


def make_simulated_rig(runtime=SimulatedRuntime, noise=0.0, **options):
    world = make_simulated_device(5, noise=noise, **options)
    clocks = {"now": world.now, "sleep": world.sleep, "wall_clock": world.now}
    return make_measurer(runtime(world), SimulatedMeter(world, period_s=0.0), rounds=2, **clocks)


def run(store, plan=PLAN, **options):
    with make_simulated_rig(**options) as rig:
        return evaluate(rig, store, plan)


def find_kept(store):
    """The one profile of a store, with everything that was seen."""
    (summary,) = [one for one in store.profiles() if not one.shipped]
    return store.profile(summary.key)


def count_work(store):
    """How often each trial was run for whom; the waiting device aside."""
    seen = find_kept(store).observations
    return Counter((one.run, one.trial.key) for one in seen if one.trial.network.layers)


# -- the whole ----------------------------------------------------------------------------------


def test_whoever_knows_the_law_is_right_and_the_best_comes_first(store):
    result = run(store)
    best, other = result.scores
    assert (best.estimator, other.estimator) == ("toy", "toy-noprobe")
    assert best.mape_percent < 0.5 and best.coverage95_percent == 100.0
    assert best.time_mape_percent < 0.5
    assert other.mape_percent == pytest.approx(50.0, abs=1.0) == other.bias_percent
    assert other.coverage95_percent == 0.0
    assert result.noise_percent < 0.5 and len(result.nets) == 4
    assert not result.left_out and not result.missing
    assert result.provenance == "simulated"


def test_probes_are_charged_to_whoever_wanted_them(store):
    result = run(store)
    kept = find_kept(store).observations
    spent = Counter()
    for seen in kept:
        spent[seen.run.partition(".")[2]] += seen.cost_s
    with_probes, without = (score.device_seconds for score in result.scores)
    assert without == pytest.approx(spent["toy"])
    assert with_probes == pytest.approx(spent["toy"] + spent["toy.probe"])
    assert result.scores[0].points - result.scores[1].points == len(result.nets)
    assert without <= PLAN.seconds + 2.0


def test_no_campaign_sees_a_test_net(store):
    result = run(store)
    tests = {net.name for net in result.nets}
    by_run: dict[str, set[str]] = {}
    for seen in find_kept(store).observations:
        by_run.setdefault(seen.run, set()).add(seen.trial.network.name)
        probe = seen.run.endswith(".probe")
        assert not (probe and seen.energy_j is not None)
    runs = {f"{result.name}.{who}" for who in ("test1", "test2", "toy", "toy.probe")}
    assert set(by_run) == runs
    assert by_run[f"{result.name}.test1"] == by_run[f"{result.name}.test2"] == tests
    assert not tests & by_run[f"{result.name}.toy"]


def test_even_a_test_net_that_slipped_into_a_campaign_is_not_learnt_from(store):
    result = run(store)
    kept = find_kept(store)
    energies = [one for one in kept.observations if one.run.endswith(".test1")]
    slipped = [replace(one, run=f"{result.name}.toy", cost_s=0.0) for one in energies]
    first, *rest = kept.observations
    again = evaluate_stored(replace(kept, observations=(first, *slipped, *rest)), PLAN)
    assert [score.points for score in again.scores] == [score.points for score in result.scores]


def test_what_is_kept_is_judged_alike_without_a_device(store):
    result = run(store)
    assert evaluate_stored(find_kept(store), PLAN) == result
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == result.to_dict()


def test_a_finished_evaluation_measures_nothing(store):
    result = run(store)
    before = find_kept(store)

    class Dead(SimulatedRuntime):
        def prepare(self, trial):
            raise AssertionError("nothing is left to measure")

    assert run(store, runtime=Dead) == result
    assert find_kept(store) == before


def test_the_fits_of_the_profile_are_left_alone(store):
    run(store)
    assert find_kept(store).fits == {}


# -- cut, and taken up again --------------------------------------------------------------------


class Cut:
    """A store that somebody pulls the plug of after some observations."""

    def __init__(self, store, left):
        self._store, self._left = store, left

    def observations(self, key):
        return self._store.observations(key)

    def add_observation(self, seen):
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        self._store.add_observation(seen)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ESTIMATORS, "toy", Toy)
        with open_store(tmp_path_factory.mktemp("whole") / "store.sqlite") as store:
            result = run(store)
            return result, count_work(store)


# In the first pass, in the campaign, among the probes, in the second pass.
@pytest.mark.parametrize("left", [0, 3, 8, 9, 11, 14, 17, 20])
def test_a_cut_evaluation_goes_on_and_measures_nothing_twice(store, undisturbed, left):
    whole, work = undisturbed
    assert left < sum(work.values())
    with pytest.raises(KeyboardInterrupt):
        run(Cut(store, left))
    before = find_kept(store).observations if left else ()
    assert len(before) == left
    result = run(store)
    assert find_kept(store).observations[:left] == before
    assert count_work(store) == work
    assert [score.points for score in result.scores] == [score.points for score in whole.scores]


def test_more_nets_and_seconds_go_on_from_what_is_there(store):
    few = run(store, replace(PLAN, nets=2, seconds=10.0))
    before = count_work(store)
    more = run(store)
    assert more.name == few.name and {net.name for net in few.nets} < {n.name for n in more.nets}
    assert before <= count_work(store)
    # The smaller one is still there, inside the larger.
    again = evaluate_stored(find_kept(store), replace(PLAN, nets=2, seconds=10.0))
    assert again.scores == few.scores and again.nets == few.nets


def test_an_estimator_that_comes_later_finds_the_nets_measured(store):
    run(store, replace(PLAN, estimators=("toy-noprobe",)))
    assert not any("probe" in run for run, _ in count_work(store))
    before = count_work(store)
    result = run(store)
    new = count_work(store) - before
    assert {name for name, _ in new} == {f"{result.name}.toy.probe"}


# -- what is not there --------------------------------------------------------------------------


def test_what_is_missing_is_said(store):
    with pytest.raises(KeyboardInterrupt):
        run(Cut(store, 11))
    result = evaluate_stored(find_kept(store), PLAN)
    said = "; ".join(result.missing)
    assert "pass 2 of 4 of 4 test nets" in said and "4 of 4 time probes of toy" in said
    assert "the rest of the campaign of toy" in said
    assert result.noise_percent is None


def test_nothing_kept_is_an_error_that_says_what_to_do(store):
    run(store)
    with pytest.raises(MissingError, match="without --offline"):
        evaluate_stored(find_kept(store), replace(PLAN, seed=2))
    with pytest.raises(MissingError, match="nothing was seen"):
        kept = find_kept(store)
        tests = tuple(seen for seen in kept.observations if "test" in seen.run)
        evaluate_stored(replace(kept, observations=tests), PLAN)


def refusing(error, where):
    class Refusing(SimulatedRuntime):
        def prepare(self, trial):
            if where(trial.network):
                raise error
            return super().prepare(trial)

    return Refusing


def test_a_net_that_is_refused_is_named_and_the_others_are_judged(store):
    bad = draw_nets(PLAN).tests[1]
    runtime = refusing(NotTrainingError("no weight moved"), lambda network: network == bad)
    result = run(store, runtime=runtime)
    assert len(result.nets) == 3 and bad.name not in {net.name for net in result.nets}
    assert any(bad.name in words and "no weight moved" in words for words in result.left_out)
    assert result.scores[0].nets == 3
    # Somebody repaired it: the rest is not measured again.
    before = count_work(store)
    assert len(run(store).nets) == 4
    assert {key for _, key in count_work(store) - before} == {Trial(bad, SETUP).key}


def test_a_disturbance_costs_windows_and_not_the_evaluation(store):
    bad, disturbed = draw_nets(PLAN).tests[0], [2]

    def disturb(network):
        if network != bad or not disturbed[0]:
            return False
        disturbed[0] -= 1
        return True

    result = run(store, runtime=refusing(ContaminatedError("other load"), disturb))
    assert len(result.nets) == 4
    assert any("a window of" in words and "other load" in words for words in result.left_out)


def test_a_disturbed_campaign_is_judged_by_what_it_has(store):
    learn = draw_nets(PLAN).learn[1]
    runtime = refusing(ContaminatedError("other load"), lambda network: network == learn)
    result = run(store, runtime=runtime)
    assert any("campaign of toy ended early" in words for words in result.left_out)
    assert result.scores[1].points == 1


def test_a_device_that_refuses_everything_says_why(store):
    runtime = refusing(NetError("there is no device"), lambda network: True)
    with pytest.raises(MissingError, match="there is no device"):
        run(store, runtime=runtime)


# -- plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", list(FAMILIES))
def test_test_nets_are_different_ones_and_none_to_learn_from(net):
    draw = draw_nets(EvaluationPlan(net, SETUP, nets=30))
    assert len(set(draw.tests)) == 30
    assert not set(draw.tests) & set(draw.learn)
    fewer = draw_nets(EvaluationPlan(net, SETUP, nets=7))
    assert fewer.tests == draw.tests[:7] and fewer.learn == draw.learn
    assert draw_nets(EvaluationPlan(net, SETUP, nets=7, seed=2)).tests != fewer.tests


def test_an_evaluation_is_known_by_what_matters():
    name = name_evaluation(PLAN, "key")
    for same in ({"nets": 9}, {"seconds": 1.0}, {"estimators": ("toy",)}):
        assert name_evaluation(replace(PLAN, **same), "key") == name
    assert name_evaluation(replace(PLAN, input_shape=(1, 28, 28)), "key") == name
    for other in ({"seed": 2}, {"setup": Setup(batch=9)}, {"input_shape": (1, 32, 32)}):
        assert name_evaluation(replace(PLAN, **other), "key") != name
    assert name_evaluation(PLAN, "other") != name


@pytest.mark.parametrize(
    ("wrong", "error", "part"),
    [
        ({"net": "nix"}, NetError, "cnn5"),
        ({"net": "cnn5:3,4"}, NetError, "cnn5 alone"),
        ({"estimators": ("nix",)}, InputError, "subtractive"),
        ({"estimators": ()}, InputError, "at least one"),
        ({"estimators": ("toy", "toy")}, InputError, "once"),
        ({"nets": 0}, InputError, "at least 1"),
        ({"seconds": 0.0}, InputError, "more than 0"),
    ],
)
def test_wrong_plans_are_refused(wrong, error, part):
    with pytest.raises(error, match=part):
        replace(PLAN, **wrong)


def test_a_family_has_only_so_many_nets():
    with pytest.raises(InputError, match="at most 104"):
        EvaluationPlan("lstm", SETUP, nets=105)
    assert len(set(draw_nets(EvaluationPlan("lstm", SETUP, nets=104)).tests)) == 104


def test_usual_estimators_are_those_there_are():
    assert {name.removesuffix("-noprobe") for name in list_estimators()} <= set(ESTIMATORS)


# -- budgets ------------------------------------------------------------------------------------


def make_costs(costs_s):
    network = draw_nets(PLAN).original
    return [Observation(Trial(network, SETUP), 1.0, duration_s=1.0, cost_s=c) for c in costs_s]


@given(st.lists(st.floats(0.1, 9.0), max_size=12), st.floats(0.1, 40.0), st.integers(0, 12))
def test_a_budget_holds_and_a_cut_is_what_a_smaller_one_would_have_seen(costs_s, seconds, idle):
    seen = make_costs(costs_s)
    waiting = replace(PLAN_IDLE, cost_s=5.0)
    within = cut_to_budget([*seen[:idle], waiting, *seen[idle:]], seconds)
    worked = [one for one in within if one.trial.network.layers]
    assert worked == seen[: len(worked)]
    assert is_budget_spent(within, seconds) or len(worked) == len(seen)
    if len(worked) > 1:
        assert not is_budget_spent(worked[:-1], seconds)
    assert cut_to_budget(within, seconds) == within
    assert sum_work_s(within) == pytest.approx(sum(costs_s[: len(worked)]))


PLAN_IDLE = Observation(Trial(replace(draw_nets(PLAN).original, layers=()), SETUP), duration_s=1.0)


def test_what_was_refused_costs_no_budget():
    refused = Observation(make_costs([1.0])[0].trial)
    assert not is_budget_spent([refused] * 9, 0.1)


# -- numbers ------------------------------------------------------------------------------------


def make_net(passes_j, estimate_j, deviation_j=0.0, name="mine"):
    measured_j = sum(passes_j) / len(passes_j)
    ends = [make_interval(estimate_j, deviation_j**2, level) for level in (0.5, 0.95)]
    answer = NetEstimate(estimate_j, ends[0], ends[1], 2.0)
    return NetResult("net", tuple(passes_j), measured_j, 2.0, 1.0, {name: answer})


def score(nets):
    return score_estimator("mine", nets, device_seconds=1.0, points=1)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_a_perfect_estimator_has_no_error_and_full_coverage(measured_j):
    found = score([make_net((one, one), one) for one in measured_j])
    zeros = ("mape", "bias", "median", "p90", "max", "width50", "width95", "noise", "time_mape")
    assert all(getattr(found, f"{name}_percent") == 0.0 for name in zeros)
    shares = ("within5", "within10", "coverage50", "coverage95")
    assert all(getattr(found, f"{name}_percent") == 100.0 for name in shares)


@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.0, 3.0)), min_size=1, max_size=9))
def test_numbers_keep_their_order_and_know_no_unit(rows):
    nets = [make_net((1.0,), estimate, doubt) for estimate, doubt in rows]
    found = score(nets)
    assert abs(found.bias_percent) <= found.mape_percent * (1 + 1e-9)
    assert found.median_percent <= found.p90_percent <= found.max_percent
    assert found.within5_percent <= found.within10_percent
    assert found.coverage50_percent <= found.coverage95_percent
    assert found.width50_percent <= found.width95_percent
    assert found.noise_percent is None
    kilo = [make_net((1024.0,), 1024 * estimate, 1024 * doubt) for estimate, doubt in rows]
    assert score(kilo).mape_percent == pytest.approx(found.mape_percent)
    assert score(kilo).width95_percent == pytest.approx(found.width95_percent)


def test_noise_is_what_two_passes_differ_by():
    nets = [make_net((9.0, 11.0), 10.0), make_net((1.0, 1.0), 1.0), make_net((3.0, 1.0), 2.0)]
    assert compute_noise_percent(nets) == pytest.approx(20.0)
    assert compute_noise_percent([make_net((1.0,), 1.0)]) is None
    assert compute_noise_percent([]) is None


# -- probes of our own method ---------------------------------------------------------------------

OWN = EvaluationPlan("cnn5", SETUP, estimators=("additive",), nets=3, seconds=8.0)


class GraphRuntime(SimulatedRuntime):
    """One that captures graphs, and may refuse a layer."""

    refused: str = ""

    def __init__(self, world):
        super().__init__(world, ("eager", "graph"))

    def prepare(self, trial):
        if trial.key == self.refused:
            raise NetError("no kernel for this layer")
        return super().prepare(trial)


def list_doubts(store):
    """Joules that were measured after all layers had been timed."""
    seen = find_kept(store).observations
    return [one for one in seen if one.run.endswith(".probe") and one.energy_j is not None]


def test_an_evaluation_that_is_done_stays_as_it_is(store):
    first = run(store, OWN, runtime=GraphRuntime)
    kept = find_kept(store).observations
    assert 0 < len(list_doubts(store)) <= 8
    again = run(store, OWN, runtime=GraphRuntime)
    assert find_kept(store).observations == kept
    assert again.scores == first.scores


def test_one_layer_that_is_refused_leaves_the_others_their_probes(store, tmp_path):
    run(store, OWN, runtime=GraphRuntime)
    probes = [one for one in find_kept(store).observations if one.run.endswith(".probe")]
    timed = next(one for one in probes if one.energy_j is None)

    class Refusing(GraphRuntime):
        refused = timed.trial.key

    with open_store(tmp_path / "other.sqlite") as other:
        result = run(other, OWN, runtime=Refusing)
        assert any("no kernel" in words for words in result.left_out)
        assert list_doubts(other)


def test_units_of_a_device_are_not_mixed(store):
    run(store)
    with make_simulated_rig() as rig:
        rig.runtime.device = replace(rig.runtime.device, unit="another")
        with pytest.raises(InputError, match="another unit"):
            evaluate(rig, store, PLAN)


def test_an_estimator_may_have_seconds_of_its_own(store):
    plan = replace(PLAN, budgets=(("toy", 4.0),))
    assert (plan.seconds_of("toy-noprobe"), plan.seconds_of("flops")) == (4.0, 20.0)
    run(store, plan)
    seen = [one for one in find_kept(store).observations if one.run.endswith(".toy")]
    assert sum_work_s(seen) <= 4.0
    with pytest.raises(InputError, match="more than 0"):
        replace(PLAN, budgets=(("toy", 0.0),))
