"""Search spaces: defaults, dimensions and rejected names."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.families import FAMILIES
from joulecast.uses.search import (
    Choice,
    NumberRange,
    make_search_space,
    parse_dimension,
)


def test_default_space_is_the_whole_family():
    space = make_search_space("cnn5")
    original = FAMILIES["cnn5"].params
    assert {name: one.bounds for name, one in space.dimensions.items()} == {
        name: (1, most) for name, most in original.items()
    }
    assert space.original[0].name == "cnn5:64,128,256,512"
    assert make_search_space("transformer").dimensions["width"] == NumberRange(4, 256, 4)


@given(st.integers(0, 2**32), st.sampled_from(sorted(FAMILIES)))
@settings(max_examples=40, deadline=None)
def test_every_draw_can_be_built(seed, family):
    vary = {
        "batch": (8, 16),
        "precision": ("fp32", "bf16"),
        "lr": NumberRange(1e-4, 1e-1, log=True),
    }
    space = make_search_space(family, vary=vary)
    params = space.draw(random.Random(seed))
    network, setup = space.build(params)
    assert network.layers and setup.batch == params["batch"]
    assert setup.precision == params["precision"] and 1e-4 <= params["lr"] <= 1e-1


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9), st.data())
def test_range_respects_bounds_and_step(low, extra, step, data):
    one = NumberRange(low, low + extra, step)
    first, last = one.bounds
    value = one.draw(random.Random(data.draw(st.integers(0, 99))))
    assert low == first <= value <= last <= low + extra < last + step
    assert (value - low) % step == 0
    shrunk = one.shrink(value, data.draw(st.floats(0, 1)))
    assert low <= shrunk <= value and (shrunk - low) % step == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c1=8..64", ("c1", NumberRange(8, 64))),
        ("c1=8..64/8", ("c1", NumberRange(8, 64, 8))),
        (" lr = 1e-4..0.1/log", ("lr", NumberRange(1e-4, 0.1, log=True))),
        ("batch=16,32", ("batch", Choice((16, 32)))),
        ("optimizer=sgd", ("optimizer", Choice(("sgd",)))),
    ],
)
def test_parse_dimension(text, expected):
    assert parse_dimension(text) == expected


@pytest.mark.parametrize("text", ["c=" + "9" * 400 + "..1", "a=b/1..2", "c=1..2/²", "c=1..1e999"])
def test_odd_range_is_refused_in_one_line(text):
    with pytest.raises(InputError) as caught:
        parse_dimension(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["C1", "c5", "c_1", "batchsize", "Precision", "threads", "loss"])
def test_misspelt_name_is_rejected(name):
    for trains in (True, False):
        with pytest.raises(InputError, match=name):
            make_search_space("cnn5", vary={name: (8, 16)}, trains=trains)


def test_unknown_names_need_a_training_function():
    for name in ("lr", "momentum", "weight_decay", "dropout", "label_smoothing"):
        assert name in make_search_space("cnn5", vary={name: (1, 2)}).dimensions
        with pytest.raises(InputError, match=f"{name!r} is not a parameter of cnn5"):
            make_search_space("cnn5", vary={name: (1, 2)}, trains=False)


@pytest.mark.parametrize("text", ["lr=nan..1", "lr=0.1..inf", "lr=-inf..1", "lr=nan,1", "lr=inf"])
def test_infinite_values_are_rejected(text):
    with pytest.raises(InputError, match="finite"):
        parse_dimension(text)


@pytest.mark.parametrize(
    "text", ["c1", "c1=", "=3", "c1=8..x", "c1=8..64/x", "c1=9..3", "c=0..3/log"]
)
def test_malformed_dimension_is_rejected(text):
    with pytest.raises(InputError):
        parse_dimension(text)


@pytest.mark.parametrize(
    "vary",
    [{"c1": (0, 4)}, {"c1": NumberRange(0.5, 4)}, {"precision": ("fp8",)}, {"batch": ("x",)}],
)
def test_impossible_values_are_rejected(vary):
    with pytest.raises(InputError):
        make_search_space("cnn5", vary=vary)
