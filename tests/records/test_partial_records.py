"""Records from data with more fields than they have."""

from dataclasses import dataclass

import pytest

from joulecast.errors import FileError
from joulecast.records.codec import Record, load_partial


@dataclass(frozen=True)
class Inner(Record):
    size_bytes: int


@dataclass(frozen=True)
class Outer(Record):
    name: str
    one: Inner | None = None
    many: tuple[Inner, ...] = ()


def test_unknown_fields_are_left_out_at_every_depth():
    data = {
        "name": "a", "more": 1,
        "one": {"size_bytes": 1, "x": 2},
        "many": [{"size_bytes": 3, "y": 4}],
    }  # fmt: skip
    assert load_partial(Outer, data, "it") == Outer("a", Inner(1), (Inner(3),))
    assert load_partial(Outer, {"name": "a", "one": None}, "it") == Outer("a")


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"name": 1},
        {},
        {"name": "a", "one": 3},
        {"name": "a", "many": [{}]},
        {"name": "a", "many": {}},
    ],
)
def test_what_does_not_fit_is_refused(data):
    with pytest.raises(FileError, match="it is damaged"):
        load_partial(Outer, data, "it")
