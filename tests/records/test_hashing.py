"""Stable hashes of JSON values."""

import json

from hypothesis import given
from hypothesis import strategies as st

from joulecast.records import stable_hash
from joulecast.testing import record_strategies as draw


@given(st.dictionaries(draw.names, draw.json_values))
def test_hash_depends_on_the_value_and_not_on_its_order(data):
    assert stable_hash(dict(reversed(list(data.items())))) == stable_hash(data)
    assert stable_hash(json.loads(json.dumps(data))) == stable_hash(data)
    assert stable_hash({**data, "one more": 1}) != stable_hash(data)
