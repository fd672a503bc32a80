"""Pruning: the budget is met, and no channel is removed in vain; budgets and run lengths."""

import json
import math
import random
import runpy
import shutil
from dataclasses import replace
from importlib.util import find_spec
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast
from benchmarks.pruning.run import make_groups
from cli_stores import run_in_store
from joulecast.families import make_family
from joulecast.features.channel_search import (
    STRATEGIES,
    PruneOptions,
    PruningProblem,
    choose_counts,
    list_allowed_counts,
    parse_pruning_budget,
    prune_network,
    refine_counts,
    search_counts,
    verify_counts,
)
from joulecast.features.prune_report import read_pruning
from joulecast.features.run import EnergyBudget, RunLength, parse_budget
from joulecast.operators import network_work
from joulecast.operators.channel_groups import ChannelGroup, ChannelSlot, narrow_network
from joulecast.records import Device, Observation, Setup, Trial
from joulecast.system.errors import FileError, InputError
from joulecast.system.units import JOULES_PER_WH
from joulecast.views.plots import make_svg
from joulecast.views.report import Table, Text
from report_examples import PRUNING

NETWORK = make_family("cnn5:16,24,32,40", (3, 32, 32))
SETUP = Setup(batch=8)
FLOPS = PruneOptions(objective="flops")


def draw_groups(seed: int = 0) -> tuple[ChannelGroup, ...]:
    """Return the four channel groups of a cnn5, as reading a pruned module would find them."""
    rng = random.Random(seed)
    groups = []
    for group in make_groups(NETWORK):
        drawn = [rng.random() for _ in range(group.channels)]
        groups.append(replace(group, importance=tuple(one / sum(drawn) for one in drawn)))
    return tuple(groups)


GROUPS = draw_groups()


class JaggedProfile:
    """Energy by FLOPs, 50 % higher for every layer whose channels are not a multiple of eight."""

    def __init__(self, log_sd=0.0):
        self.log_sd, self.log_variance = log_sd, [4.0 * log_sd**2] * 2

    def predict_means(self, networks, setup):
        odd = [sum(one.sizes["cout"] % 8 != 0 for one in net.layers[:-1]) for net in networks]
        flops = [network_work(one, setup).total.flops for one in networks]
        return np.array(flops) * (1 + 0.5 * np.array(odd))

    def estimate(self, networks, setup, **options):
        self.energy_j = self.predict_means(networks, setup)
        return self

    def log_ratio_variance(self, reference, others):
        return [self.log_sd**2]

    def draw(self, count):
        """Draw errors that each network has alone, none of the first."""
        rng = np.random.default_rng(1)
        errors = self.log_sd * rng.standard_normal((count, len(self.energy_j)))
        errors[:, 0] = 0.0
        return self.energy_j * np.exp(errors)


class WrongProfile(JaggedProfile):
    """Energy by FLOPs, with an error of each network that was drawn once."""

    def __init__(self, seed, log_sd=0.1):
        super().__init__(log_sd)
        self.seed = seed

    def predict_means(self, networks, setup):
        flops = [network_work(one, setup).total.flops for one in networks]
        widths = [tuple(layer.sizes["cout"] for layer in one.layers) for one in networks]
        errors = [random.Random(f"{self.seed} {one}").gauss(0.0, self.log_sd) for one in widths]
        return np.array(flops) * np.exp(errors)


def make_problem(fitted=None, share=0.5, **options) -> PruningProblem:
    chosen, budget = PruneOptions(**options), EnergyBudget(share=share)
    allowed = list_allowed_counts(NETWORK, GROUPS, chosen)
    return PruningProblem(NETWORK, GROUPS, allowed, SETUP, budget, chosen, fitted)


def test_equal_layers_are_narrowed_but_keep_their_names():
    layer = NETWORK.layers[1]
    twins = [replace(layer, name=name) for name in ("one", "two")]
    network = replace(NETWORK, layers=(*twins, *NETWORK.layers[2:]), totals=None)
    slots = tuple(ChannelSlot(place, 0, "cout", -1, 1) for place in (0, 1))
    group = ChannelGroup("both", 1, (), slots, (1.0,) * layer.sizes["cout"])
    made = narrow_network(network, [group], {"both": 5}).layers[:2]
    assert [(one.name, one.sizes["cout"]) for one in made] == [("one", 5), ("two", 5)]


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@settings(max_examples=4)
@given(share=st.floats(0.15, 0.95), confidence=st.sampled_from([0.5, 0.9]), spend=st.booleans())
def test_every_strategy_meets_the_budget_with_confidence(strategy, share, confidence, spend):
    problem = make_problem(JaggedProfile(0.02), share, confidence=confidence)
    counts = refine_counts(problem, STRATEGIES[strategy](problem), spend)
    cost = problem.compute_cost(counts)
    assert cost <= share * problem.compute_cost(problem.full)
    assert problem.compute_budget_probability(counts) >= confidence - 1e-9
    for name, count in counts.items():
        assert count in problem.allowed[name]
        # No larger multiple of eight is cheaper.
        near = -(-count // 8) * 8
        if near in problem.allowed[name] and near > count:
            assert problem.compute_cost({**counts, name: near}) > cost


@pytest.mark.parametrize(
    ("fitted", "lowered", "refined"),
    [
        (None, (10, 15, 24, 38), (10, 15, 26, 39)),
        (JaggedProfile(), (16, 8, 32, 8), (16, 8, 32, 32)),
    ],
)
def test_marginal_weighs_importance_against_cost(fitted, lowered, refined):
    """Pin the counts: other ones would meet the budget too."""
    problem = make_problem(fitted)
    counts = STRATEGIES["marginal"](problem)
    assert tuple(counts.values()) == lowered
    assert tuple(refine_counts(problem, counts, True).values()) == refined


def test_marginal_uses_the_budget_that_uniform_leaves():
    problem = make_problem()
    full_cost = problem.compute_cost(problem.full)
    uniform = STRATEGIES["uniform"](problem)
    marginal = refine_counts(problem, STRATEGIES["marginal"](problem), True)
    assert 0.49 * full_cost < problem.compute_cost(marginal) <= 0.5 * full_cost
    assert problem.compute_value(marginal) > problem.compute_value(uniform)
    of_epochs = parse_pruning_budget("2Wh", RunLength(epochs=2, samples=50), batch=10)
    assert of_epochs.limit(4.0) == pytest.approx(2 * JOULES_PER_WH / 10)
    whole = make_problem(JaggedProfile(), share=1.0)
    assert refine_counts(whole, whole.full, True) == whole.full


def test_limits_apply_floor_keep_and_multiple():
    problem = make_problem(JaggedProfile(), floor=0.25, keep=("conv2",), multiple=4)
    assert problem.allowed["conv2"] == (24,) and problem.allowed["conv1"] == (4, 8, 12, 16)
    assert make_problem(JaggedProfile(), floor=6).smallest["conv1"] == 6
    assert make_problem(JaggedProfile(), keep=("conv*",)).smallest == problem.full
    options = replace(FLOPS, keep=("conv3",))
    result = prune_network(NETWORK, GROUPS, SETUP, parse_pruning_budget("60%"), options=options)
    assert result.counts["conv3"] == result.pruned.layers[2].sizes["cout"] == 32
    assert result.budget_probability is None and result.before is None
    assert 0.55 < result.cost_after / result.cost_before <= 0.6


def test_kept_importance_is_that_of_the_most_important_channels():
    group = replace(GROUPS[0], importance=(0.1, 0.4, 0.2, 0.3))
    assert group.rank() == [0, 2, 3, 1]
    problem = replace(make_problem(JaggedProfile()), groups=(group,))
    assert problem.shares["conv1"][2] == pytest.approx(0.7)


@given(log_sd=st.floats(0.001, 0.2), confidence=st.floats(0.5, 0.99))
def test_budget_probability_at_the_cost_target_is_the_confidence(log_sd, confidence):
    of_share = make_problem(JaggedProfile(log_sd), confidence=confidence)
    # A ratio of two networks is more certain than either energy.
    of_joules = replace(of_share, budget=EnergyBudget(of_share.cost_limit))
    for problem, sd in ((of_share, log_sd), (of_joules, 2.0 * log_sd)):
        log_margin = math.log(problem.cost_limit / problem.compute_cost_target(problem.full))
        assert NormalDist().cdf(log_margin / sd) == pytest.approx(confidence)


def observe(network, energy_j):
    """Return a step that the device limits, in one window."""
    about = {"covers": "gpu", "device": Device("board")}
    return Observation(
        Trial(network, SETUP), energy_j=energy_j, duration_s=0.1, issue_s=0.01, **about
    )


def count_flops(problem, counts):
    return network_work(problem.narrow_network(counts), SETUP).total.flops


@pytest.mark.parametrize("strategy", ["marginal", "random"])
def test_a_choice_among_many_is_corrected_for_selection(strategy):
    """Without the correction, what is chosen takes more than estimated; with it, hardly."""
    before, after = [], []
    for seed in range(12):
        problem = make_problem(WrongProfile(seed), strategy=strategy, confidence=0.5)
        # The budget refers to the network itself, which is known.
        full = tuple(problem.full.values())
        problem.known_costs[full] = count_flops(problem, problem.full)
        naive = search_counts(problem)
        corrected, counts = choose_counts(problem)
        for found, one in ((before, naive), (after, counts)):
            found.append(math.log(count_flops(problem, one) / problem.cost_limit))
        assert 0.05 < corrected.optimism < 0.3 and corrected.sd_factor < 1.0
    assert np.mean(before) > 0.1
    assert abs(np.mean(after)) < 0.05


def test_a_walk_compares_nothing_and_ends_at_the_estimate():
    problem, counts = choose_counts(make_problem(JaggedProfile(0.1), strategy="walk"))
    assert problem.optimism == 0.0
    assert problem.compute_budget_probability(counts) >= 0.9
    surely = choose_counts(make_problem(JaggedProfile(), strategy="walk"))
    assert surely[1] != choose_counts(make_problem(JaggedProfile(), strategy="walk", seed=1))[1]
    flops = choose_counts(make_problem(strategy="walk", objective="flops"))
    assert 0.48 < flops[0].compute_cost(flops[1]) / flops[0].compute_cost(flops[0].full) <= 0.5


@pytest.mark.parametrize("strategy", ["marginal", "uniform", "walk"])
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.25])
def test_verified_networks_are_within_the_budget(strategy, factor):
    """Pruned networks take more, or less, than estimated, by a factor that is learnt."""
    fitted, measured = JaggedProfile(0.05), []

    def measure(counts, network):
        energy_j = float(fitted.predict_means([network], SETUP)[0]) / 1e9
        if network is not NETWORK:
            energy_j *= factor
            measured.append(energy_j)
        return observe(network, energy_j)

    found = verify_counts(make_problem(fitted, strategy=strategy), measure)
    assert 1 <= len(measured) == len(found.rounds) <= 3
    chosen = next(one for one in found.rounds if one.counts == found.counts)
    assert chosen.energy_j == found.after.energy_j and chosen.share <= 0.5
    assert chosen.budget_probability >= 0.9
    shares = [one.importance_share for one in found.rounds if one.budget_probability >= 0.9]
    assert chosen.importance_share == max(shares)
    if strategy == "marginal":
        # Cheap widths are eight channels apart.
        assert chosen.share > 0.44


def test_a_device_that_exceeds_every_estimate_is_reported():
    """The smallest network of a device may still take too much: the least one is returned."""
    problem, energies_j = make_problem(JaggedProfile()), iter((1.0, 0.9, 0.8, 0.7))

    found = verify_counts(problem, lambda counts, net: observe(net, next(energies_j)))
    assert found.rounds[-1].budget_probability < 0.01
    assert found.after.energy_j == min(one.energy_j for one in found.rounds)
    with pytest.raises(InputError, match="gave no energy"):
        verify_counts(problem, lambda counts, net: observe(net, None))


@pytest.mark.parametrize(
    ("budget", "groups", "options", "named"),
    [
        ("50%", GROUPS, None, "needs a device profile"),
        ("50%", (), FLOPS, "no channels"),
        ("150%", GROUPS, FLOPS, "less than 100 %"),
        ("5J", GROUPS, FLOPS, "needs a share"),
        ("0.5%", GROUPS, FLOPS, r"smallest reachable network.*FLOP"),
        ("50%", GROUPS, replace(FLOPS, keep=("nowhere",)), "no layer"),
    ],
)
def test_impossible_requests_are_refused(budget, groups, options, named):
    with pytest.raises(InputError, match=named):
        prune_network(NETWORK, groups, SETUP, parse_pruning_budget(budget), options=options)


# -- the verb -----------------------------------------------------------------------------------

NAME = "cnn5:32,32,32,32"
SIZES = ("--batch", "512", "--input", "3x32x32")
NET = (NAME, *SIZES, "--device", "sim")
# The quickest strategy, where any would do.
UNIFORM = (*NET, "--strategy", "uniform")
OWN = """
import torch
from torch import nn

def make_net():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 64, 10),
    )
    return net, torch.randn(4, 3, 32, 32)
"""


@pytest.fixture(scope="module")
def cnn_store(tmp_path_factory):
    """Return a store with a profile of nets wide enough to be worth pruning."""
    path = tmp_path_factory.mktemp("cnn") / "store.sqlite"
    run_in_store(path, "profile", NAME, *SIZES, "--on", "simulated:7", "--points", "8")
    return path


@pytest.fixture
def stored(shell, cnn_store):
    """Return a command line whose store has that profile."""
    shutil.copy(cnn_store, shell.folder / "store.sqlite")
    return shell


@pytest.fixture(scope="module")
def surely_halved(cnn_store):
    """Return what pruning to half of the energy gives without measuring."""
    words = ("--budget", "50%", "--json")
    return json.loads(run_in_store(cnn_store, "prune", *NET, *words))


def test_json_has_estimates_and_layers(surely_halved):
    before, after = surely_halved["before"], surely_halved["after"]
    assert after["interval_j"][0] < after["energy_j"] <= 0.5 * before["energy_j"]
    assert after["provenance"] == "simulated" and surely_halved["budget_probability"] >= 0.9
    changed = {layer["name"]: layer["channels_after"] for layer in surely_halved["layers"]}
    assert list(changed)[:2] == ["conv1", "conv2"] and changed["fc"] == 10
    assert changed.items() >= surely_halved["counts"].items()


def test_text_shows_layers_interval_and_provenance(stored):
    words = ("--budget", "50%", "--on", "simulated:7", "--out", "result.json")
    out = " ".join(stored("prune", *UNIFORM, *words).stdout.split())
    said = "(simulated, 95 % interval", "within the budget with", "measured", "conv2", "→", "random"
    for part in said:
        assert part in out
    assert "extrapolated" not in out
    assert "extrapolated" in stored("prune", *UNIFORM, "--budget", "95%", "--inference").output
    data = json.loads((stored.folder / "result.json").read_text())
    assert data["after"]["provenance"] == "simulated" and len(data["rounds"]) >= 1
    # The same budget, for a run.
    of_step = stored.json("prune", *UNIFORM, "--budget", "0.5J")
    of_run = ("--budget", "500J", "--epochs", "10", "--samples", "51200")
    assert stored.json("prune", *UNIFORM, *of_run)["counts"] == of_step["counts"]


def test_the_objective_flops_still_estimates_energy(stored):
    data = stored.json("prune", *NET, "--budget", "50%", "--objective", "flops")
    assert data["cost_after"] <= 0.5 * data["cost_before"] and data["unit"] == "FLOP"
    assert data["after"]["energy_j"] > 0.5 * data["before"]["energy_j"]
    assert data["budget_probability"] < 0.05


def test_a_saved_model_is_loaded_again(stored, write):
    import torch

    write("own.py", OWN)
    words = ("own.py:make_net", "--device", "sim", "--budget", "99%", "--importance", "taylor")
    data = stored.json("prune", *words, "--save", "small", "--keep", "3")
    original, _ = runpy.run_path("own.py")["make_net"]()
    net = joulecast.load_pruned("small", original)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert net[0].out_channels == data["counts"]["0"] and net[3].out_channels == 32


def test_a_device_at_hand_verifies_each_choice(stored, surely_halved):
    """The result is measured, so less has to be pruned."""
    words = (*NET[:-2], "--budget", "50%", "--on", "simulated:7")
    seen = stored.json("prune", *words)
    last = next(one for one in seen["rounds"] if one["counts"] == seen["counts"])
    assert seen["after"]["energy_j"] == last["energy_j"] and last["budget_probability"] >= 0.9
    assert seen["budget_probability"] == last["budget_probability"]
    assert last["share"] == pytest.approx(last["energy_j"] / seen["before"]["energy_j"])
    assert surely_halved["cost_after"] / surely_halved["cost_before"] < last["share"] <= 0.5
    assert len(seen["rounds"]) <= 3 and last["share"] > 0.43
    unverified = stored.json("prune", *words, "--no-verify")
    assert "rounds" not in unverified and unverified["counts"] == surely_halved["counts"]


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--budget", "1%"), "smallest reachable network", 1),
        (("--budget", "2Wh"), "give --steps", 1),
        (("--strategy", "luck"), "luck", 2),
        (("--multiple", "1000"), "up to 32", 1),
        (("--verify",), "name it with --on", 2),
        (("--verify", "--on", "simulated:7", "--objective", "flops"), "leave --objective", 2),
        (("--on", "simulated:8"), "simulated-8", 1),
        (("--save", "/proc/nowhere"), "another folder to --save", 1),
        (("--objective", "flops", "--confidence", "0.8"), "leave --confidence out", 2),
    ],
)
def test_refusals_are_one_line(stored, words, said, code):
    assert said in stored.fails("prune", *NET, "--budget", "50%", *words, code=code)


def test_recurrent_layers_are_refused(stored):
    assert "LSTM" in stored.fails("prune", "lstm:8", "--device", "sim", "--budget", "50%")


@pytest.mark.parametrize(
    ("missing", "title"),
    [("torch", "PyTorch"), ("torch_pruning", "Torch-Pruning"), ("safetensors", "safetensors")],
)
def test_missing_packages_are_named_with_their_extra(shell, monkeypatch, missing, title):
    monkeypatch.setattr(
        "joulecast.features.nets.find_spec",
        lambda name: None if name == missing else find_spec(name),
    )
    line = shell.fails("prune", "nowhere.py:make_net", "--budget", "50%")
    assert f"pruning needs {title}: run pip install 'joulecast[prune]'" in line


# -- the report, from the JSON of a result ------------------------------------------------------


def test_a_written_pruning_is_reported():
    report = read_pruning(PRUNING).report()
    words = " ".join(block.text for block in report.blocks if isinstance(block, Text))
    assert report.title.startswith("cnn5:8,8,8,8 pruned to 50% for board")
    assert "49.0 % of" in words and "within the budget with a probability of 60.0 %" in words
    assert "Not pruned: fc: it is the output." in words
    rounds, table = (block for block in report.blocks if isinstance(block, Table))
    assert rounds.rows == (("1", "900 mJ", "980 mJ", "49.0 %", "60.0 %", "80.0 %"),)
    assert table.rows[0][:3] == ("conv1", "conv2d", "8 → 4")
    (plot,) = report.plots
    assert plot.title == "Energy by layer (modelled)" and "conv1" in make_svg(plot)
    without = {**PRUNING, "before": None, "after": None}
    assert "energies are unknown" in read_pruning(without).report().blocks[0].text
    with pytest.raises(FileError, match="the pruning is damaged"):
        read_pruning({**PRUNING, "layers": 3})


def test_layers_that_save_least_become_one_row():
    row = PRUNING["layers"][0]
    layers = [
        {**row, "name": f"l{i}", "energy_before_j": 10.0, "energy_after_j": 10.0 - i / 10}
        for i in range(40)
    ]
    report = read_pruning({**PRUNING, "layers": layers, "rounds": []}).report()
    (table,) = (block for block in report.blocks if isinstance(block, Table))
    assert table.rows[0][0] == "l16" and table.rows[-1][0] == "other 16 layers"
    assert table.rows[-1][3] == "160 J" and len(report.plots[0].data.rows) == 40


RUN, STEP = RunLength(10), RunLength()


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [
        ("0.5Wh", RUN, EnergyBudget(1800.0, per="run")),
        ("5J", RUN, EnergyBudget(5.0, per="run")),
        ("5J", STEP, EnergyBudget(5.0, per="step")),
        ("5 mJ", STEP, EnergyBudget(0.005, per="step")),
        ("5J/step", RUN, EnergyBudget(5.0, per="step")),
        ("2Wh / step", STEP, EnergyBudget(7200.0, per="step")),
        ("3kJ/run", RunLength(epochs=2, samples=64), EnergyBudget(3000.0, per="run")),
        ("50%", RUN, EnergyBudget(share=0.5, per="run")),
        ("150 %", STEP, EnergyBudget(share=1.5, per="step")),
        ("2Wh", RunLength(1), EnergyBudget(7200.0, per="run")),
    ],
)
def test_parse_budget(text, length, expected):
    assert parse_budget(text, length) == expected


@pytest.mark.parametrize(
    ("text", "length", "named"),
    [
        *(
            (text, RUN, "budget.*like")
            for text in ("5", "5J/day", "5J/", "0J", "0%", "x%", "-3%", "1e999%", "much")
        ),
        # A single step does not take watt-hours.
        *((text, STEP, "give steps.*/step") for text in ("2Wh", "300mWh", "3kJ", "1 MJ", "5J/run")),
    ],
)
def test_other_budgets_are_refused_alike(text, length, named):
    for parse in (parse_budget, parse_pruning_budget):
        with pytest.raises(InputError, match=named):
            parse(text, length)


@given(st.floats(0.01, 1e4), st.sampled_from(["J", "kJ", "Wh", "mWh", "J/step", "Wh/run"]))
def test_pruning_takes_the_budget_of_a_search_for_one_step(amount, unit):
    text = f"{amount!r}{unit}"
    found, step = parse_budget(text, RunLength(20)), parse_pruning_budget(text, RunLength(20))
    assert step == found.to_step(20) and step.per == "step" and step.text == text
    assert step.limit(3.0) * (20 if found.per == "run" else 1) == pytest.approx(found.limit(3.0))


@given(st.integers(1, 50), st.integers(1, 1000), st.integers(1, 300))
def test_epoch_covers_every_sample(epochs, samples, batch):
    steps = RunLength(epochs=epochs, samples=samples).count_steps(batch)
    assert steps % epochs == 0 and steps * batch >= epochs * samples > (steps - epochs) * batch


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *((RunLength, one) for one in ((None, 3), (None, None, 3), (0,), (10**14,), (3, 1, 8))),
        *((EnergyBudget, one) for one in ((), (1.0, 0.5), (math.nan,), (None, 0.5, "day"))),
    ],
)
def test_impossible_budgets_and_lengths_are_refused(kind, wrong):
    with pytest.raises(InputError):
        kind(*wrong)
    with pytest.raises(InputError, match="at most 1,000,000,000,000"):
        RunLength(epochs=10**9, samples=10**9).count_steps(32)
