"""Evaluations: nothing is measured twice, and no test network is used for fitting."""

import json
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_stores import run_in_store
from joulecast.cli.progress import format_report
from joulecast.estimators import ESTIMATORS
from joulecast.estimators.base import Prediction, Proposal
from joulecast.families import FAMILIES, make_family
from joulecast.features.evaluate import EstimatorScore, NetEstimate, NetResult
from joulecast.features.evaluation import (
    EvaluationPlan,
    cut_to_budget,
    evaluate_stored,
    is_budget_spent,
    list_estimators,
    measure_and_evaluate,
    name_campaign,
    name_evaluation,
    score_estimator,
    sum_work_s,
)
from joulecast.features.progress_report import ProgressReport
from joulecast.gp.lognormal import lognormal_interval
from joulecast.measurer import MeasureClock, Measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.store import open_store
from joulecast.system.errors import (
    ContaminatedError,
    InputError,
    MissingError,
    NetError,
    NotTrainingError,
)

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
    patch.setitem(ESTIMATORS, "exact", f"{__name__}:ExactEstimator")
    PLAN = EvaluationPlan(
        "lenet5", SETUP, estimators=("exact", "exact-noprobe"), nets=4, seconds=20.0
    )


@pytest.fixture(autouse=True)
def exact_estimator(monkeypatch):
    monkeypatch.setitem(ESTIMATORS, "exact", f"{__name__}:ExactEstimator")


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite") as opened:
        yield opened


def make_simulated_measurer(runtime=SimulatedRuntime, noise=0.0, **options):
    device = make_simulated_device(5, noise=noise, **options)
    clock = MeasureClock(device.now, device.sleep, device.now)
    return Measurer(
        runtime(device), SimulatedMeter(device, update_interval_s=0.0), rounds=2, clock=clock
    )


def run(store, plan=PLAN, **options):
    with make_simulated_measurer(**options) as measurer:
        return measure_and_evaluate(measurer, store, plan)


def load_only_profile(store):
    """Return the only profile of a store, with all observations."""
    (summary,) = [one for one in store.list_profiles() if not one.shipped]
    return store.load_profile(summary.key)


def count_trials(store):
    """Return how often each trial was run by run tag, without idle measurements."""
    seen = load_only_profile(store).observations
    return Counter((one.run, one.trial.key) for one in seen if one.trial.network.layers)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a finished evaluation, its profile, and how often each trial was run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ESTIMATORS, "exact", f"{__name__}:ExactEstimator")
        with open_store(tmp_path_factory.mktemp("whole") / "store.sqlite") as store:
            result = run(store)
            return result, load_only_profile(store), count_trials(store)


# -- a complete evaluation ----------------------------------------------------------------------


def test_a_finished_evaluation_scores_estimators_on_networks_that_none_has_seen(finished):
    result, kept, _ = finished
    best, other = result.scores
    assert (best.estimator, other.estimator) == ("exact", "exact-noprobe")
    assert best.mape_percent < 0.5 > best.time_mape_percent and best.coverage95_percent == 100.0
    assert other.mape_percent == pytest.approx(50.0, abs=1.0) == other.bias_percent
    assert other.coverage95_percent == 0.0 and result.provenance == "simulated"
    assert result.noise_percent < 0.5 and not result.left_out and not result.missing
    tests = {net.name for net in result.nets}
    spent, by_role = Counter(), defaultdict(set)
    for seen in kept.observations:
        role = seen.run.removeprefix(f"{result.name}.")
        spent[role] += seen.cost_s
        by_role[role].add(seen.trial.network.name)
        assert seen.energy_j is None or role != "exact.probe"
    assert set(by_role) == {"test1", "test2", "exact", "exact.probe"}
    assert by_role["test1"] == by_role["test2"] == tests and not tests & by_role["exact"]
    # Device time includes the probes of the estimator.
    assert pytest.approx(other.device_seconds) == spent["exact"] <= PLAN.seconds + 2.0
    assert best.device_seconds == pytest.approx(spent["exact"] + spent["exact.probe"])
    assert best.points - other.points == len(tests) == 4
    # Nothing else is needed to compute it again.
    assert evaluate_stored(kept, PLAN) == result and kept.fits == {}
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == result.to_dict()


def test_test_network_in_a_campaign_is_not_used_for_fitting(finished):
    result, kept, _ = finished
    energies = [one for one in kept.observations if one.run.endswith(".test1")]
    leaked = [replace(one, run=f"{result.name}.exact", cost_s=0.0) for one in energies]
    first, *rest = kept.observations
    again = evaluate_stored(replace(kept, observations=(first, *leaked, *rest)), PLAN)
    assert [score.points for score in again.scores] == [score.points for score in result.scores]


def test_baselines_of_whole_networks_share_one_campaign(store):
    baselines = ("work-linear", "flops-linear", "flops", "constant")
    plan = replace(PLAN, estimators=baselines)
    result = run(store, plan)
    roles = {one.run.partition(".")[2] for one in load_only_profile(store).observations}
    assert roles == {"test1", "test2", "flops"} and not result.missing
    assert {score.estimator for score in result.scores} == set(baselines)
    assert len({(score.points, score.device_seconds) for score in result.scores}) == 1
    alone = evaluate_stored(load_only_profile(store), replace(plan, estimators=("constant",)))
    assert alone.scores == tuple(s for s in result.scores if s.estimator == "constant")


# -- interruptions ------------------------------------------------------------------------------


def run_until(store, left, plan=PLAN):
    """Run an evaluation that is interrupted after some observations."""
    count = iter(range(left))

    def add_observation(seen):
        if next(count, None) is None:
            raise KeyboardInterrupt
        store.add_observation(seen)

    with pytest.raises(KeyboardInterrupt):
        log = SimpleNamespace(
            load_observations=store.load_observations, add_observation=add_observation
        )
        run(log, plan)


# During the first pass, the campaign, the probes and the second pass.
@pytest.mark.parametrize("left", [0, 9, 14, 20])
def test_interrupted_evaluation_resumes_and_measures_nothing_twice(store, finished, left):
    whole, _, work = finished
    assert left < sum(work.values())
    run_until(store, left)
    before = load_only_profile(store).observations if left else ()
    assert len(before) == left
    result = run(store)
    assert load_only_profile(store).observations[:left] == before
    assert count_trials(store) == work
    assert [score.points for score in result.scores] == [score.points for score in whole.scores]


@pytest.mark.parametrize(
    ("smaller", "added"),
    [
        ({"nets": 2, "seconds": 10.0}, {"test1", "test2", "exact", "exact.probe"}),
        ({"estimators": ("exact-noprobe",)}, {"exact.probe"}),
    ],
)
def test_a_larger_plan_extends_an_evaluation(store, smaller, added):
    few = run(store, replace(PLAN, **smaller))
    before = count_trials(store)
    more = run(store)
    assert more.name == few.name and {net.name for net in few.nets} <= {n.name for n in more.nets}
    assert before <= count_trials(store)
    new = {name.removeprefix(f"{more.name}.") for name, _ in count_trials(store) - before}
    assert new == added
    # The smaller evaluation is still part of the larger one.
    again = evaluate_stored(load_only_profile(store), replace(PLAN, **smaller))
    assert again.scores == few.scores and again.nets == few.nets


# -- missing and refused measurements -----------------------------------------------------------


def test_missing_measurements_are_named(store):
    run_until(store, 11)
    result = evaluate_stored(load_only_profile(store), PLAN)
    said = "; ".join(result.missing)
    assert "pass 2 of 4 of 4 test nets" in said and "4 of 4 time probes of exact" in said
    assert "the rest of the campaign of exact" in said
    assert result.noise_percent is None


def test_empty_store_error_says_what_to_do(finished):
    _, kept, _ = finished
    with pytest.raises(MissingError, match="without offline"):
        evaluate_stored(kept, replace(PLAN, seed=2))
    with pytest.raises(MissingError, match="no observations"):
        tests = tuple(seen for seen in kept.observations if "test" in seen.run)
        evaluate_stored(replace(kept, observations=tests), PLAN)


def make_refusing_runtime(error, where, base=SimulatedRuntime):
    class RefusingRuntime(base):
        def prepare(self, trial):
            if where(trial):
                raise error
            return super().prepare(trial)

    return RefusingRuntime


def test_refused_network_is_listed_and_the_others_are_scored(store):
    bad = PLAN.drawn.test[1]
    error = NotTrainingError("no weight moved")
    result = run(store, runtime=make_refusing_runtime(error, lambda trial: trial.network == bad))
    assert result.scores[0].nets == 3 and bad.name not in {net.name for net in result.nets}
    assert f"Left out: {bad.name}: no weight moved" in str(result)
    # Once it can be measured, the rest is not measured again.
    before = count_trials(store)
    assert len(run(store).nets) == 4
    assert {key for _, key in count_trials(store) - before} == {Trial(bad, SETUP).key}


def test_disturbances_end_neither_a_pass_nor_the_evaluation(store):
    bad, left = PLAN.drawn.test[0], [True, True]
    disturbed = ContaminatedError("other load")

    def disturb(trial):
        is_bad = trial.network == bad and bool(left) and left.pop()
        return trial.network == PLAN.drawn.campaign[1] or is_bad

    result = run(store, runtime=make_refusing_runtime(disturbed, disturb))
    said = "; ".join(result.left_out)
    assert "a window of" in said and "other load" in said and len(result.nets) == 4
    # A campaign is scored by the observations that it has.
    assert "campaign of exact ended early" in said and result.scores[1].points == 1


def test_device_that_refuses_everything_gives_the_reason(store):
    runtime = make_refusing_runtime(NetError("there is no device"), lambda trial: True)
    with pytest.raises(MissingError, match="there is no device"):
        run(store, runtime=runtime)


# -- probes of the additive estimator -----------------------------------------------------------


ADDITIVE_PLAN = EvaluationPlan("cnn5", SETUP, estimators=("additive",), nets=3, seconds=8.0)


class GraphRuntime(SimulatedRuntime):
    """A runtime that captures graphs."""

    def __init__(self, device):
        super().__init__(device, ("eager", "graph"))


def list_energy_probes(store):
    """Return probes that measured energy after all layers had been timed."""
    seen = load_only_profile(store).observations
    return [one for one in seen if one.run.endswith(".probe") and one.energy_j is not None]


def test_refused_layer_does_not_prevent_other_probes(store, tmp_path):
    first = run(store, ADDITIVE_PLAN, runtime=GraphRuntime)
    kept = load_only_profile(store).observations
    assert 0 < len(list_energy_probes(store)) <= 8
    assert run(store, ADDITIVE_PLAN, runtime=GraphRuntime).scores == first.scores
    assert load_only_profile(store).observations == kept
    probes = [one for one in kept if one.run.endswith(".probe")]
    timed = next(one for one in probes if one.energy_j is None)
    refusing = make_refusing_runtime(
        NetError("no kernel for this layer"),
        lambda trial: trial.key == timed.trial.key,
        GraphRuntime,
    )
    with open_store(tmp_path / "other.sqlite") as other:
        result = run(other, ADDITIVE_PLAN, runtime=refusing)
        assert any("no kernel" in line for line in result.left_out)
        assert list_energy_probes(other)


def test_units_of_a_device_are_not_mixed(store):
    run_until(store, 1)
    with make_simulated_measurer() as measurer:
        measurer.runtime.device = replace(measurer.runtime.device, unit="another")
        with pytest.raises(InputError, match="another unit"):
            measure_and_evaluate(measurer, store, PLAN)


def test_single_estimator_can_have_its_own_seconds(store):
    result = run(store, replace(PLAN, budgets=(("exact", 4.0),)))
    seen = [one for one in load_only_profile(store).observations if one.run.endswith(".exact")]
    assert 0.0 < sum_work_s(seen) <= 4.0 and not result.missing


# -- plans, device time and scores --------------------------------------------------------------


LENET = replace(PLAN, estimators=("additive", "additive-noprobe"))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_test_networks_are_distinct_and_not_for_campaigns(family):
    drawn = EvaluationPlan(family, SETUP, nets=8).drawn
    assert len(set(drawn.test)) == 8 and not set(drawn.test) & set(drawn.campaign)
    fewer = EvaluationPlan(family, SETUP, nets=3)
    assert fewer.drawn.test == drawn.test[:3] and fewer.drawn.campaign == drawn.campaign
    assert replace(fewer, seed=2).drawn.test != fewer.drawn.test


def test_name_depends_on_what_is_measured():
    name = name_evaluation(LENET, "key")
    for same in ({"nets": 9}, {"seconds": 1.0}, {"estimators": ("flops",)}):
        assert name_evaluation(replace(LENET, **same), "key") == name
    assert name_evaluation(replace(LENET, input_shape=(1, 28, 28)), "key") == name
    for other in ({"seed": 2}, {"setup": Setup(batch=9)}, {"input_shape": (1, 32, 32)}):
        assert name_evaluation(replace(LENET, **other), "key") != name
    assert name_evaluation(LENET, "other") != name


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"estimators": ()}, "at least one"),
        ({"estimators": ("flops", "flops")}, "once"),
        ({"nets": 0}, "at least 1"),
        ({"family": "lstm", "nets": 105}, "at most 104"),
        ({"seconds": 0.0}, "more than 0"),
        ({"budgets": (("additive", 0.0),)}, "more than 0"),
    ],
)
def test_invalid_plans_are_rejected(wrong, part):
    with pytest.raises(InputError, match=part):
        replace(LENET, **wrong)
    assert len(set(EvaluationPlan("lstm", SETUP, nets=104).drawn.test)) == 104


def test_all_estimators_but_ampere_are_evaluated_by_default():
    """Campaigns of ``ampere`` take much longer: it is evaluated where it is named."""
    expected = set(ESTIMATORS) - {"ampere", "exact"}
    both = (*list_estimators("transformer"), *list_estimators("shufflenetv2"))
    assert {name.removesuffix("-noprobe") for name in both} == expected
    without_blocks = {name.removesuffix("-noprobe") for name in list_estimators("cnn5")}
    kernels = {"kernel-gp"}
    assert expected - without_blocks - kernels == {"subtractive-blocks"}
    assert set(list_estimators("cnn5", "inference")) == {*list_estimators("cnn5"), *kernels}


def test_a_plan_shares_campaigns_and_may_repeat_fewer_networks():
    assert name_campaign("additive-noprobe") == name_campaign("additive") == "additive"
    plan = replace(
        LENET,
        estimators=("constant", "work-linear", "flops", "subtractive"),
        repeated=3,
        budgets=(("flops", 4.0),),
    )
    assert plan.campaigns == ("flops", "subtractive")
    assert [plan.get_seconds(name) for name in ("constant", "subtractive")] == [4.0, 20.0]
    assert [len(plan.list_trials(number)) for number in (0, 1)] == [4, 3]


NETWORK = make_family("lenet5")
IDLE = Observation(Trial(replace(NETWORK, layers=()), SETUP), duration_s=1.0)


def make_observations(costs_s):
    return [Observation(Trial(NETWORK, SETUP), 1.0, duration_s=1.0, cost_s=c) for c in costs_s]


@given(st.lists(st.floats(0.1, 9.0), max_size=12), st.floats(0.1, 40.0), st.integers(0, 12))
def test_cut_campaign_equals_one_with_the_smaller_budget(costs_s, seconds, idle_place):
    observations = make_observations(costs_s)
    idle = replace(IDLE, cost_s=5.0)
    within = cut_to_budget([*observations[:idle_place], idle, *observations[idle_place:]], seconds)
    worked = [one for one in within if one.trial.network.layers]
    assert worked == observations[: len(worked)]
    assert is_budget_spent(within, seconds) or len(worked) == len(observations)
    if len(worked) > 1:
        assert not is_budget_spent(worked[:-1], seconds)
    assert cut_to_budget(within, seconds) == within
    assert sum_work_s(within) == pytest.approx(sum(costs_s[: len(worked)]))
    # Refused trials cost nothing.
    assert not is_budget_spent([Observation(Trial(NETWORK, SETUP))] * 9, 0.1)


def make_net(passes_j, estimate_j, sd_j=0.0, name="mine"):
    measured_j = sum(passes_j) / len(passes_j)
    intervals = [lognormal_interval(estimate_j, sd_j**2, level) for level in (0.5, 0.95)]
    estimate = NetEstimate(estimate_j, *intervals, 2.0)
    return NetResult("net", tuple(passes_j), measured_j, 2.0, 1.0, {name: estimate})


def score(nets):
    return score_estimator("mine", nets, device_seconds=1.0, points=1)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_perfect_estimator_has_no_error_and_full_coverage(measured_j):
    found = score([make_net((one, one), one) for one in measured_j])
    zeros = ("mape", "bias", "median", "p90", "max", "width50", "width95", "noise", "time_mape")
    assert all(getattr(found, f"{name}_percent") == 0.0 for name in zeros)
    shares = ("within5", "within10", "coverage50", "coverage95")
    assert all(getattr(found, f"{name}_percent") == 100.0 for name in shares)


@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.0, 3.0)), min_size=1, max_size=9))
def test_scores_are_ordered_and_independent_of_the_unit(rows):
    found = score([make_net((1.0,), estimate_j, sd_j) for estimate_j, sd_j in rows])
    assert abs(found.bias_percent) <= found.mape_percent * (1 + 1e-9)
    assert found.median_percent <= found.p90_percent <= found.max_percent
    assert found.within5_percent <= found.within10_percent
    assert found.coverage50_percent <= found.coverage95_percent
    assert found.width50_percent <= found.width95_percent and found.noise_percent is None
    scaled = [make_net((1024.0,), 1024 * estimate_j, 1024 * sd_j) for estimate_j, sd_j in rows]
    assert score(scaled).mape_percent == pytest.approx(found.mape_percent)
    assert score(scaled).width95_percent == pytest.approx(found.width95_percent)


def test_noise_is_the_median_difference_of_two_passes():
    nets = [make_net((9.0, 11.0), 10.0), make_net((1.0, 1.0), 1.0), make_net((3.0, 1.0), 2.0)]
    assert score(nets).noise_percent == pytest.approx(20.0)


# -- the verb -----------------------------------------------------------------------------------


SMALL = ("lenet5", "--on", "simulated:7", "--batch", "8", "--nets", "3")
LEARNT = (*SMALL, "--estimators", "subtractive", "--seconds", "40")


@pytest.fixture(scope="module")
def lenet_store(tmp_path_factory):
    """Return a store that holds an evaluation."""
    path = tmp_path_factory.mktemp("lenet") / "store.sqlite"
    run_in_store(path, "evaluate", *LEARNT)
    return path


@pytest.fixture
def evaluated(shell, lenet_store):
    """Return a command line whose store holds an evaluation, and its result."""
    shutil.copy(lenet_store, shell.folder / "store.sqlite")
    return shell, shell.json("evaluate", *LEARNT, "--offline")


def test_a_finished_evaluation_needs_no_device(evaluated, monkeypatch):
    shell, data = evaluated
    (score,) = data["scores"]
    assert set(score) == set(EstimatorScore.__dataclass_fields__)
    assert score["estimator"] == "subtractive" and score["nets"] == len(data["nets"]) == 3
    for net in data["nets"]:
        assert net["measured_j"] == pytest.approx(sum(net["passes_j"]) / 2)
        estimate = net["estimates"]["subtractive"]
        (low, high), (lowest, highest) = estimate["interval50_j"], estimate["interval95_j"]
        assert lowest < low < estimate["energy_j"] < high < highest
    monkeypatch.delattr("joulecast.simulation.runtime.SimulatedRuntime.prepare")
    before = shell.snapshot()
    # Nothing is left to measure.
    assert shell.json("evaluate", *LEARNT) == data
    # A named device may be elsewhere.
    away = [word.replace("simulated:7", "cuda:7") for word in LEARNT]
    assert shell.json("evaluate", *away, "--device", "simulated-7", "--offline") == data
    assert shell.snapshot() == before


def test_text_has_one_table_and_the_provenance(evaluated):
    shell, data = evaluated
    text = shell("evaluate", *LEARNT, "--offline", "--plot", "page.html").stdout
    lines = text.splitlines()
    assert "3 held-out nets of lenet5 on simulated-7 (simulated)" in lines[0]
    (row,) = [line for line in lines if line.startswith("subtractive  ")]
    assert row.split()[1] == f"{data['scores'][0]['mape_percent']:.1f}"
    assert "subtractive has the smallest error: MAPE" in text and "store.sqlite" in text
    assert max(map(len, lines)) <= 100 and "…" not in text
    assert "energy per step (simulated)" in (shell.folder / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["net.json"], 1, "not a family"),
        (["cnn5", "--estimators", "subtractive,nix"], 1, "'nix'"),
        (["cnn5", "--input", "3x8"], 1, "3x96x96"),
        (["cnn5", "--on", "nix"], 1, "nix"),
        (["cnn5", "--offline"], 1, "without --offline"),
        (["cnn5", "--offline", "--device", "nix"], 1, "no profile of 'nix'"),
        (["cnn5", "--device", "simulated-7"], 2, "--device needs --offline"),
    ],
)
def test_bad_options_are_one_line(shell, words, code, part):
    on = [] if "--on" in words else ["--on", "simulated:7"]
    assert part in shell.fails("evaluate", *words, *on, code=code)


def test_settings_name_the_estimators_and_terminals_show_progress(shell, write, monkeypatch):
    write("joulecast.toml", '[evaluate]\nestimators = "flops"\nseconds = 5')
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = shell("evaluate", *SMALL, "--json")
    data = json.loads(result.stdout)
    assert [score["estimator"] for score in data["scores"]] == ["flops"] and data["seconds"] == 5
    assert "test nets, pass 2 of 2" in result.stderr
    report = ProgressReport(0.5, 1.0, "2 of 6: additive learns", "conv2d")
    assert format_report(report) == "2 of 6: additive learns"
    assert format_report(ProgressReport(3, 8, "trials")) == "3 of 8 trials"
