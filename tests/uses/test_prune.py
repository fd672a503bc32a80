"""Choosing counts: budgets are kept, and nothing is cut for nothing."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.families import make_family
from joulecast.kinds import network_work
from joulecast.kinds.narrow import Group, Slot, narrow
from joulecast.records import Setup
from joulecast.units import JOULES_PER_WH
from joulecast.uses.prune import EnergyBudget, FlopsObjective, make_channel_limits, parse_budget, prune_network
from joulecast.uses.prune.refinement import refine_counts
from joulecast.uses.prune.strategies import STRATEGIES
from joulecast.uses.prune.pruning_problem import PruningProblem, kept_importance_share

NETWORK = make_family("cnn5:16,24,32,40", (3, 32, 32))
SETUP = Setup(batch=8)


def make_groups(seed: int = 0) -> tuple[Group, ...]:
    """The four groups of channels of a cnn5, as reading cut copies of it would find them."""
    rng = random.Random(seed)
    groups = []
    for place, layer in enumerate(NETWORK.layers[:-1]):
        count = layer.sizes["cout"]
        behind = NETWORK.layers[place + 1].sizes["cin"] // count
        slots = (Slot(place, 0, "cout", -1, 1), Slot(place + 1, 0, "cin", -1, behind))
        drawn = [rng.random() for _ in range(count)]
        importance = tuple(one / sum(drawn) for one in drawn)
        groups.append(Group(layer.name, 1, (), slots, importance))
    return tuple(groups)


GROUPS = make_groups()


class StepGuide:
    """Joules by FLOPs, but odd counts cost half as much again; errors are known."""

    unit = "J"

    def __init__(self, sd: float = 0.0) -> None:
        self.sd = sd

    def cost(self, networks):
        costs = []
        for network in networks:
            odd = sum(layer.sizes["cout"] % 8 != 0 for layer in network.layers[:-1])
            costs.append(network_work(network, SETUP).total.flops * (1 + 0.5 * odd))
        return np.array(costs)

    def spread(self, before, after, budget):
        return self.sd


def make_task(guide, share=0.5, confidence=0.5, **limits) -> PruningProblem:
    bounds = make_channel_limits(NETWORK, GROUPS, **limits)
    return PruningProblem(NETWORK, GROUPS, bounds, guide, EnergyBudget(share=share), confidence)


def test_equal_layers_keep_their_own_names():
    """What candidates share is made once, whatever it is called."""
    layer = NETWORK.layers[1]
    twins = [replace(layer, name=name) for name in ("one", "two")]
    network = replace(NETWORK, layers=(*twins, *NETWORK.layers[2:]), totals=None)
    slots = tuple(Slot(place, 0, "cout", -1, 1) for place in (0, 1))
    group = Group("both", 1, (), slots, (1.0,) * layer.sizes["cout"])
    made = narrow(network, [group], {"both": 5})
    assert [one.name for one in made.layers[:2]] == ["one", "two"]
    assert [one.sizes["cout"] for one in made.layers[:2]] == [5, 5]


def test_narrowing_is_what_the_family_makes():
    counts = {"conv1": 5, "conv2": 7, "conv3": 9, "conv4": 11}
    assert narrow(NETWORK, GROUPS, counts) == make_family("cnn5:5,7,9,11", (3, 32, 32))
    assert narrow(NETWORK, GROUPS, {}) == NETWORK


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@settings(max_examples=8)
@given(share=st.floats(0.15, 0.95), confidence=st.sampled_from([0.5, 0.9]))
def test_every_strategy_keeps_the_budget_with_confidence(strategy, share, confidence):
    task = make_task(StepGuide(sd=0.02), share, confidence)
    counts = refine_counts(task, STRATEGIES[strategy]().choose(task), strategy == "marginal")
    assert task.cost([counts])[0] <= share * task.cost([task.limits.whole])[0]
    assert task.odds(counts) >= confidence - 1e-9
    assert all(counts[name] in allowed for name, allowed in task.limits.allowed.items())


@settings(max_examples=8)
@given(share=st.floats(0.2, 0.9), spend=st.booleans())
def test_no_larger_count_of_a_group_is_cheaper(share, spend):
    task = make_task(StepGuide(), share)
    counts = refine_counts(task, STRATEGIES["marginal"]().choose(task), spend)
    now = task.cost([counts])[0]
    for name, count in counts.items():
        near = -(-count // 8) * 8
        if near in task.limits.allowed[name] and near > count:
            assert task.cost([{**counts, name: near}])[0] > now


def test_marginal_spends_what_uniform_leaves():
    task = make_task(FlopsObjective(SETUP))
    whole = task.cost([task.limits.whole])[0]
    uniform = STRATEGIES["uniform"]().choose(task)
    marginal = refine_counts(task, STRATEGIES["marginal"]().choose(task), True)
    assert 0.49 * whole < task.cost([marginal])[0] <= 0.5 * whole
    assert task.worth(marginal) > task.worth(uniform)


def test_limits_floors_layers_to_keep_and_multiples():
    limits = make_channel_limits(NETWORK, GROUPS, floor=0.25, keep=["conv2"], multiple=4)
    assert limits.allowed["conv2"] == (24,)
    assert limits.allowed["conv1"] == (4, 8, 12, 16)
    assert make_channel_limits(NETWORK, GROUPS, floor=6).least["conv1"] == 6
    assert make_channel_limits(NETWORK, GROUPS, keep=["conv*"]).least == limits.whole
    with pytest.raises(InputError, match="no layer"):
        make_channel_limits(NETWORK, GROUPS, keep=["nowhere"])


def test_a_kept_layer_stays_whole():
    limits = make_channel_limits(NETWORK, GROUPS, keep=["conv3"])
    done = prune_network(NETWORK, GROUPS, SETUP, parse_budget("60%"), guide="flops", limits=limits)
    assert done.counts["conv3"] == 32
    assert done.smaller.layers[2].sizes["cout"] == 32
    assert done.kept_probability is None and done.before is None
    assert 0.55 < done.cost_after / done.cost_before <= 0.6


def test_importance_that_is_kept_is_that_of_the_best():
    group = replace(GROUPS[0], importance=(0.1, 0.4, 0.2, 0.3))
    assert kept_importance_share(group, 2) == pytest.approx(0.7)
    assert group.rank() == [0, 2, 3, 1]


def test_a_budget_is_a_share_a_step_or_a_run():
    assert parse_budget("50%").limit(4.0) == 2.0
    assert parse_budget("5J").limit(4.0) == 5.0
    assert parse_budget("2Wh", steps=100).limit(4.0) == pytest.approx(2 * JOULES_PER_WH / 100)
    for text in ("50", "0%", "100%", "-5J", "0J", "much"):
        with pytest.raises(InputError):
            parse_budget(text)


def test_a_budget_below_reach_is_refused_with_the_smallest_net():
    with pytest.raises(InputError, match=r"smallest net within reach.*FLOP") as caught:
        prune_network(NETWORK, GROUPS, SETUP, parse_budget("0.5%"), guide="flops")
    assert "\n" not in str(caught.value)


def test_what_already_keeps_the_budget_is_not_cut():
    task = make_task(StepGuide(), share=1.0)
    assert refine_counts(task, task.limits.whole, True) == task.limits.whole


@given(sd=st.floats(0.001, 0.2), confidence=st.floats(0.5, 0.99))
def test_the_target_is_where_odds_are_the_confidence(sd, confidence):
    task = make_task(StepGuide(sd), confidence=confidence)
    target = task.target(task.limits.whole)
    room = math.log(task.limit() / target)
    assert NormalDist().cdf(room / sd) == pytest.approx(confidence)


def test_nonsense_is_refused():
    budget = parse_budget("50%")
    for words in (
        {"strategy": "luck"},
        {"guide": "stars"},
        {"confidence": 1.5, "guide": "flops"},
        {"guide": "estimate"},
    ):
        with pytest.raises(InputError):
            prune_network(NETWORK, GROUPS, SETUP, budget, **words)
    with pytest.raises(InputError, match="no channels"):
        prune_network(NETWORK, (), SETUP, budget, guide="flops")
    with pytest.raises(InputError, match="no joules"):
        prune_network(NETWORK, GROUPS, SETUP, parse_budget("5J"), guide="flops")
