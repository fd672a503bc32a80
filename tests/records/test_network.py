"""Sizes: an immutable mapping whose equal values have equal JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.records import Sizes
from joulecast.testing import record_strategies as draw


@given(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9) | st.booleans()))
def test_equal_sizes_have_equal_json(sizes):
    as_floats = Sizes({name: float(value) for name, value in sizes.items()})
    assert as_floats == Sizes(sizes)
    assert hash(as_floats) == hash(Sizes(sizes))
    assert json.dumps(as_floats.to_dict()) == json.dumps(Sizes(sizes).to_dict())


@given(draw.sizes)
def test_sizes_are_an_immutable_mapping(sizes):
    assert Sizes(dict(reversed(list(sizes.items())))) == sizes
    assert dict(sizes) == {name: sizes[name] for name in sizes}
    with pytest.raises(TypeError):
        sizes["cin"] = 1
    assert all(f"{name}=" in repr(sizes) for name in sizes)
