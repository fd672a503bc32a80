"""Evaluation plans: random networks, names and checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.errors import InputError, NetError
from joulecast.estimators import ESTIMATORS
from joulecast.families import FAMILIES
from joulecast.records import Setup
from joulecast.uses.evaluate import EvaluationPlan, list_estimators, name_evaluation
from joulecast.uses.evaluate.evaluation_plan import draw_nets, name_campaign

SETUP = Setup(batch=8)
PLAN = EvaluationPlan(
    "lenet5", SETUP, estimators=("additive", "additive-noprobe"), nets=4, seconds=20.0
)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_test_networks_are_distinct_and_not_for_campaigns(family):
    drawn = draw_nets(EvaluationPlan(family, SETUP, nets=30))
    assert len(set(drawn.test)) == 30
    assert not set(drawn.test) & set(drawn.campaign)
    fewer = draw_nets(EvaluationPlan(family, SETUP, nets=7))
    assert fewer.test == drawn.test[:7] and fewer.campaign == drawn.campaign
    assert draw_nets(EvaluationPlan(family, SETUP, nets=7, seed=2)).test != fewer.test


def test_name_depends_on_what_is_measured():
    name = name_evaluation(PLAN, "key")
    for same in ({"nets": 9}, {"seconds": 1.0}, {"estimators": ("flops",)}):
        assert name_evaluation(replace(PLAN, **same), "key") == name
    assert name_evaluation(replace(PLAN, input_shape=(1, 28, 28)), "key") == name
    for other in ({"seed": 2}, {"setup": Setup(batch=9)}, {"input_shape": (1, 32, 32)}):
        assert name_evaluation(replace(PLAN, **other), "key") != name
    assert name_evaluation(PLAN, "other") != name


@pytest.mark.parametrize(
    ("wrong", "error", "part"),
    [
        ({"family": "nix"}, NetError, "cnn5"),
        ({"family": "cnn5:3,4"}, NetError, "cnn5 alone"),
        ({"estimators": ("nix",)}, InputError, "subtractive"),
        ({"estimators": ()}, InputError, "at least one"),
        ({"estimators": ("flops", "flops")}, InputError, "once"),
        ({"nets": 0}, InputError, "at least 1"),
        ({"seconds": 0.0}, InputError, "more than 0"),
        ({"budgets": (("additive", 0.0),)}, InputError, "more than 0"),
    ],
)
def test_invalid_plans_are_rejected(wrong, error, part):
    with pytest.raises(error, match=part):
        replace(PLAN, **wrong)


def test_family_has_a_limited_number_of_networks():
    with pytest.raises(InputError, match="at most 104"):
        EvaluationPlan("lstm", SETUP, nets=105)
    assert len(set(draw_nets(EvaluationPlan("lstm", SETUP, nets=104)).test)) == 104


def test_all_estimators_but_ampere_are_evaluated_by_default():
    """Campaigns of ``ampere`` take much longer: it is evaluated where it is named."""
    expected = set(ESTIMATORS) - {"ampere"}
    both = (*list_estimators("transformer"), *list_estimators("shufflenetv2"))
    assert {name.removesuffix("-noprobe") for name in both} == expected
    without_blocks = {name.removesuffix("-noprobe") for name in list_estimators("cnn5")}
    kernels = {"kernel-gp"}
    assert expected - without_blocks - kernels == {"subtractive-blocks"}
    assert set(list_estimators("cnn5", "inference")) == {*list_estimators("cnn5"), *kernels}


def test_estimators_that_propose_the_same_trials_share_a_campaign():
    assert name_campaign("additive-noprobe") == name_campaign("additive") == "additive"
    assert {name_campaign(name) for name in ("flops", "work-linear", "constant")} == {"flops"}
    plan = replace(PLAN, estimators=("constant", "work-linear", "subtractive"))
    assert plan.campaigns == ("flops", "subtractive")


def test_a_second_pass_may_have_fewer_networks():
    plan = EvaluationPlan("lenet5", Setup(batch=8), nets=12)
    assert [plan.count_nets(number) for number in (0, 1)] == [12, 12]
    assert [replace(plan, repeated=3).count_nets(number) for number in (0, 1)] == [12, 3]
