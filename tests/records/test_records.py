"""Records of trials: equality without labels, stable keys, and values that are refused."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.records import (
    Execution,
    Input,
    Layer,
    Network,
    Observation,
    Setup,
    Sizes,
    Trial,
)
from joulecast.testing import record_strategies as draw


def rename(network, name):
    """Return the network with every label replaced, down to the parts of its blocks."""

    def renamed(layer):
        parts = tuple(map(renamed, layer.parts))
        return replace(layer, name=name, parts=parts)

    return replace(network, name=name, layers=tuple(map(renamed, network.layers)))


@given(draw.trials, draw.names)
def test_labels_take_no_part_in_equality_or_key(trial, name):
    renamed = replace(trial, network=rename(trial.network, name))
    assert renamed == trial
    assert hash(renamed) == hash(trial)
    assert renamed.key == trial.key


@given(draw.trials, st.booleans(), st.none() | draw.totals)
def test_buildable_and_totals_take_no_part_in_the_key(trial, buildable, totals):
    network = replace(trial.network, buildable=buildable, totals=totals)
    assert replace(trial, network=network).key == trial.key


@given(draw.trials, draw.trials)
def test_keys_are_equal_exactly_when_trials_are(one, other):
    assert (one.key == other.key) == (one == other)
    assert Trial.from_dict(json.loads(json.dumps(one.to_dict()))).key == one.key


@given(draw.trials)
def test_every_setting_is_part_of_the_key(trial):
    bigger = replace(trial, setup=replace(trial.setup, batch=trial.setup.batch + 1))
    longer = replace(trial, execution=replace(trial.execution, steps=trial.execution.steps + 1))
    deeper = replace(trial, network=replace(trial.network, layers=(Layer("x"), Layer("y"))))
    assert len({trial.key, bigger.key, longer.key, deeper.key}) == 4


def test_key_is_the_same_in_every_version():
    layer = Layer("linear", Sizes({"cin": 4, "cout": 2, "lead": (), "bias": 1}), name="fc")
    trial = Trial(Network((layer,), Input((4,))), Setup(batch=8), Execution(steps=3))
    assert trial.key == "02d30849ceff0766"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Setup(batch=0),
        lambda: Setup(threads=-1),
        lambda: Setup(phase="sleep"),
        lambda: Setup(precision="fp8"),
        lambda: Setup(optimizer="lion"),
        lambda: Setup(loss="hinge"),
        lambda: Execution(stage="warmup"),
        lambda: Execution(mode="lazy"),
        lambda: Execution(upstream="none"),
        lambda: Execution(copies=0),
        lambda: Execution(steps=0),
        lambda: Observation(Trial(Network(), Setup()), provenance="guessed"),
    ],
)
def test_impossible_values_are_refused_in_one_line(make):
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)
