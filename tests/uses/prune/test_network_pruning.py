"""Pruning: the budget is met, and no channel is removed without saving energy."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.budgets import EnergyBudget, RunLength
from joulecast.errors import InputError
from joulecast.families import make_family
from joulecast.kinds import network_work
from joulecast.kinds.channel_groups import ChannelGroup, ChannelSlot, narrow_network
from joulecast.records import Setup
from joulecast.units import JOULES_PER_WH
from joulecast.uses.prune import (
    FlopsObjective,
    PruneOptions,
    make_channel_limits,
    parse_pruning_budget,
    prune_network,
)
from joulecast.uses.prune.pruning_problem import PruningProblem, kept_importance_share
from joulecast.uses.prune.refinement import refine_counts
from joulecast.uses.prune.strategies import STRATEGIES
from joulecast.uses.prune_options import STRATEGY_NAMES

NETWORK = make_family("cnn5:16,24,32,40", (3, 32, 32))
SETUP = Setup(batch=8)
FLOPS = PruneOptions(objective="flops")


def make_groups(seed: int = 0) -> tuple[ChannelGroup, ...]:
    """Return the four channel groups of a cnn5, as reading a pruned module would find them."""
    rng = random.Random(seed)
    groups = []
    for place, layer in enumerate(NETWORK.layers[:-1]):
        count = layer.sizes["cout"]
        inputs_per_channel = NETWORK.layers[place + 1].sizes["cin"] // count
        slots = (
            ChannelSlot(place, 0, "cout", -1, 1),
            ChannelSlot(place + 1, 0, "cin", -1, inputs_per_channel),
        )
        drawn = [rng.random() for _ in range(count)]
        importance = tuple(one / sum(drawn) for one in drawn)
        groups.append(ChannelGroup(layer.name, 1, (), slots, importance))
    return tuple(groups)


GROUPS = make_groups()


class JaggedObjective:
    """Cost by FLOPs, 50 % higher for every layer whose channels are not a multiple of eight."""

    unit = "J"

    def __init__(self, log_sd: float = 0.0) -> None:
        self.log_sd = log_sd

    def compute_costs(self, networks):
        costs = []
        for network in networks:
            odd = sum(layer.sizes["cout"] % 8 != 0 for layer in network.layers[:-1])
            costs.append(network_work(network, SETUP).total.flops * (1 + 0.5 * odd))
        return np.array(costs)

    def compute_log_sd(self, before, after, budget):
        return self.log_sd


def make_problem(objective, share=0.5, confidence=0.5, **limits) -> PruningProblem:
    bounds = make_channel_limits(NETWORK, GROUPS, **limits)
    budget = EnergyBudget(share=share)
    return PruningProblem(NETWORK, GROUPS, bounds, objective, budget, confidence)


def test_equal_layers_keep_their_names():
    """Narrowed layers are cached, but their names are not part of the cache key."""
    layer = NETWORK.layers[1]
    twins = [replace(layer, name=name) for name in ("one", "two")]
    network = replace(NETWORK, layers=(*twins, *NETWORK.layers[2:]), totals=None)
    slots = tuple(ChannelSlot(place, 0, "cout", -1, 1) for place in (0, 1))
    group = ChannelGroup("both", 1, (), slots, (1.0,) * layer.sizes["cout"])
    made = narrow_network(network, [group], {"both": 5})
    assert [one.name for one in made.layers[:2]] == ["one", "two"]
    assert [one.sizes["cout"] for one in made.layers[:2]] == [5, 5]


def test_narrowing_equals_building_the_narrower_net():
    counts = {"conv1": 5, "conv2": 7, "conv3": 9, "conv4": 11}
    assert narrow_network(NETWORK, GROUPS, counts) == make_family("cnn5:5,7,9,11", (3, 32, 32))
    assert narrow_network(NETWORK, GROUPS, {}) == NETWORK


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@settings(max_examples=8)
@given(share=st.floats(0.15, 0.95), confidence=st.sampled_from([0.5, 0.9]))
def test_every_strategy_meets_the_budget_with_confidence(strategy, share, confidence):
    problem = make_problem(JaggedObjective(log_sd=0.02), share, confidence)
    chosen = STRATEGIES[strategy]().choose(problem)
    counts = refine_counts(problem, chosen, strategy == "marginal")
    assert problem.compute_cost(counts) <= share * problem.compute_cost(problem.limits.full)
    assert problem.compute_budget_probability(counts) >= confidence - 1e-9
    assert all(counts[name] in allowed for name, allowed in problem.limits.allowed.items())


@settings(max_examples=8)
@given(share=st.floats(0.2, 0.9), spend=st.booleans())
def test_no_larger_multiple_of_eight_is_cheaper(share, spend):
    problem = make_problem(JaggedObjective(), share)
    counts = refine_counts(problem, STRATEGIES["marginal"]().choose(problem), spend)
    cost = problem.compute_cost(counts)
    for name, count in counts.items():
        near = -(-count // 8) * 8
        if near in problem.limits.allowed[name] and near > count:
            assert problem.compute_cost({**counts, name: near}) > cost


def test_marginal_uses_the_budget_that_uniform_leaves():
    problem = make_problem(FlopsObjective(SETUP))
    full_cost = problem.compute_cost(problem.limits.full)
    uniform = STRATEGIES["uniform"]().choose(problem)
    marginal = refine_counts(problem, STRATEGIES["marginal"]().choose(problem), True)
    assert 0.49 * full_cost < problem.compute_cost(marginal) <= 0.5 * full_cost
    assert problem.compute_value(marginal) > problem.compute_value(uniform)


def test_limits_apply_floor_keep_and_multiple():
    limits = make_channel_limits(NETWORK, GROUPS, floor=0.25, keep=["conv2"], multiple=4)
    assert limits.allowed["conv2"] == (24,)
    assert limits.allowed["conv1"] == (4, 8, 12, 16)
    assert make_channel_limits(NETWORK, GROUPS, floor=6).smallest["conv1"] == 6
    assert make_channel_limits(NETWORK, GROUPS, keep=["conv*"]).smallest == limits.full
    with pytest.raises(InputError, match="no layer"):
        make_channel_limits(NETWORK, GROUPS, keep=["nowhere"])


def test_kept_layer_is_not_pruned():
    options = replace(FLOPS, keep=("conv3",))
    budget = parse_pruning_budget("60%")
    result = prune_network(NETWORK, GROUPS, SETUP, budget, options=options)
    assert result.counts["conv3"] == 32
    assert result.pruned.layers[2].sizes["cout"] == 32
    assert result.budget_probability is None and result.before is None
    assert 0.55 < result.cost_after / result.cost_before <= 0.6


def test_kept_importance_is_that_of_the_most_important_channels():
    group = replace(GROUPS[0], importance=(0.1, 0.4, 0.2, 0.3))
    assert kept_importance_share(group, 2) == pytest.approx(0.7)
    assert group.rank() == [0, 2, 3, 1]


def test_budget_is_a_share_or_energy_of_a_step_or_run():
    assert parse_pruning_budget("50%").limit(4.0) == 2.0
    assert parse_pruning_budget("5J").limit(4.0) == 5.0
    of_a_run = parse_pruning_budget("2Wh", RunLength(100))
    assert of_a_run.limit(4.0) == pytest.approx(2 * JOULES_PER_WH / 100)
    of_epochs = parse_pruning_budget("2Wh", RunLength(epochs=2, samples=50), batch=10)
    assert of_epochs.limit(4.0) == pytest.approx(2 * JOULES_PER_WH / 10)
    for text in ("50", "0%", "100%", "-5J", "0J", "much"):
        with pytest.raises(InputError):
            parse_pruning_budget(text)


def test_unreachable_budget_error_names_the_smallest_network():
    budget = parse_pruning_budget("0.5%")
    with pytest.raises(InputError, match=r"smallest reachable network.*FLOP") as caught:
        prune_network(NETWORK, GROUPS, SETUP, budget, options=FLOPS)
    assert "\n" not in str(caught.value)


def test_network_within_the_budget_is_not_pruned():
    problem = make_problem(JaggedObjective(), share=1.0)
    assert refine_counts(problem, problem.limits.full, True) == problem.limits.full


@given(log_sd=st.floats(0.001, 0.2), confidence=st.floats(0.5, 0.99))
def test_budget_probability_at_the_cost_target_is_the_confidence(log_sd, confidence):
    problem = make_problem(JaggedObjective(log_sd), confidence=confidence)
    target = problem.compute_cost_target(problem.limits.full)
    log_margin = math.log(problem.cost_limit / target)
    assert NormalDist().cdf(log_margin / log_sd) == pytest.approx(confidence)


def test_invalid_options_are_rejected():
    for wrong in (
        {"strategy": "luck"},
        {"objective": "stars"},
        {"importance": "size"},
        {"confidence": 1.5},
        {"floor": -0.1},
        {"multiple": 0},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            PruneOptions(**wrong)
    assert tuple(STRATEGIES) == STRATEGY_NAMES


def test_invalid_requests_are_rejected():
    budget = parse_pruning_budget("50%")
    with pytest.raises(InputError, match="needs a device profile"):
        prune_network(NETWORK, GROUPS, SETUP, budget)
    with pytest.raises(InputError, match="no channels"):
        prune_network(NETWORK, (), SETUP, budget, options=FLOPS)
    with pytest.raises(InputError, match="needs a share"):
        prune_network(NETWORK, GROUPS, SETUP, parse_pruning_budget("5J"), options=FLOPS)
