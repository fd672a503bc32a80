"""The codec: exact round trips, options of fields, and errors that name what is wrong."""

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import FileError, InputError
from joulecast.records import Device, Network, Observation, Setup, StepTotals, codec, load_record
from joulecast.records.codec import Record, add_codec, always_stored, not_stored, omit_default
from joulecast.testing import record_strategies as draw

EVERY_RECORD = st.one_of(
    draw.ops,
    draw.layers,
    draw.inputs,
    draw.totals,
    draw.networks(),
    draw.setups,
    draw.executions,
    draw.trials,
    draw.devices,
    draw.observations,
    draw.profiles(),
)


def through_json(data):
    return json.loads(json.dumps(data, allow_nan=False))


@dataclass(frozen=True)
class Point(Record):
    x: float
    y: float = 0.0
    label: str = omit_default("")


@dataclass(frozen=True)
class Tree(Record):
    value: int
    children: tuple["Tree", ...] = omit_default(())


@dataclass(frozen=True)
class Everything(Record):
    pair: tuple[int, Point]
    points: tuple[Point, ...] = ()
    by_name: Mapping[str, Point] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    maybe: Point | None = None
    renamed: int = omit_default(3, json_name="other_name")
    needed: int = always_stored(default=4)
    cache: int = not_stored(5)
    anything: Any = None


@dataclass(frozen=True)
class Derived(Point):
    def to_dict(self):
        return {**super().to_dict(), "sum": self.x + self.y}


@dataclass(frozen=True)
class Ratio(Record):
    value: Fraction


add_codec(Fraction, str, Fraction)

points = st.builds(Point, draw.amounts, draw.amounts, draw.names)
trees = st.recursive(
    st.builds(Tree, draw.whole),
    lambda children: st.builds(Tree, draw.whole, st.lists(children, max_size=3).map(tuple)),
    max_leaves=8,
)
everything = st.builds(
    Everything,
    st.tuples(draw.whole, points),
    st.lists(points, max_size=3).map(tuple),
    st.dictionaries(draw.names, points, max_size=2),
    st.dictionaries(draw.names, draw.amounts, max_size=2),
    st.none() | points,
    draw.whole,
    draw.whole,
)


@given(EVERY_RECORD | points | trees | everything)
def test_round_trip_is_exact(record):
    data = record.to_dict()
    decoded = type(record).from_dict(through_json(data))
    assert decoded == record
    # Labels take no part in equality, so the JSON is compared as well.
    assert through_json(decoded.to_dict()) == through_json(data)


def test_floats_keep_all_their_digits():
    totals = StepTotals(3.141592653589793, 0.1 + 0.2, 3, 1e-300)
    assert StepTotals.from_dict(through_json(totals.to_dict())) == totals


def test_unknown_field_is_refused():
    with pytest.raises(InputError, match="Point has no field 'colour'"):
        Point.from_dict({"x": 1.0, "colour": "red"})


def test_missing_field_is_named():
    with pytest.raises(InputError, match="x is missing"):
        Point.from_dict({"y": 1.0})
    assert Point.from_dict({"x": 1.0}) == Point(1.0)


def test_omit_default_leaves_the_default_out():
    assert Point(1.0, 2.0).to_dict() == {"x": 1.0, "y": 2.0}
    assert Point(1.0, 2.0, "a").to_dict() == {"x": 1.0, "y": 2.0, "label": "a"}


def test_always_stored_field_must_be_in_the_json():
    data = Everything((1, Point(2.0))).to_dict()
    assert data.pop("needed") == 4
    with pytest.raises(InputError, match="needed is missing"):
        Everything.from_dict(data)


def test_not_stored_field_is_never_written_and_cannot_be_read():
    data = Everything((1, Point(2.0)), cache=9).to_dict()
    assert "cache" not in data
    assert Everything.from_dict(data).cache == 5
    with pytest.raises(InputError, match="cache"):
        Everything.from_dict({**data, "cache": 9})


def test_json_name_is_used_in_both_directions():
    record = Everything((1, Point(2.0)), renamed=7)
    data = record.to_dict()
    assert data["other_name"] == 7
    assert "renamed" not in data
    assert Everything.from_dict(data) == record
    with pytest.raises(InputError, match="renamed"):
        Everything.from_dict({**data, "renamed": 7})


@pytest.mark.parametrize("values", [[], [1], [1, {"x": 1.0}, 3]])
def test_fixed_tuple_must_have_its_length(values):
    with pytest.raises(InputError, match=f"pair has {len(values)} values, 2 expected"):
        Everything.from_dict({"pair": values, "needed": 4})


def test_overridden_to_dict_is_used_inside_other_records():
    @dataclass(frozen=True)
    class Holder(Record):
        one: Derived
        several: tuple[Derived, ...] = ()

    data = Holder(Derived(1.0, 2.0), (Derived(3.0, 4.0),)).to_dict()
    assert data["one"]["sum"] == 3.0
    assert data["several"][0]["sum"] == 7.0


def test_added_codec_converts_other_types():
    assert Ratio(Fraction(1, 3)).to_dict() == {"value": "1/3"}
    assert Ratio.from_dict({"value": "1/3"}) == Ratio(Fraction(1, 3))


def test_union_of_two_records_is_refused():
    @dataclass(frozen=True)
    class Ambiguous(Record):
        value: Point | Tree

    with pytest.raises(TypeError, match="ambiguous"):
        Ambiguous(Point(1.0)).to_dict()


DAMAGED_NETWORKS = [
    None,
    [],
    "text",
    {},
    {"layers": 3, "input": {"shape": [], "vocabulary": 0}, "groups": []},
    {"layers": [{"kind": "linear"}], "input": {"shape": [], "vocabulary": 0}, "groups": []},
    {"layers": [], "input": None, "groups": [], "buildable": True, "name": ""},
    {
        "layers": [],
        "input": {"shape": [], "vocabulary": 0},
        "groups": [[1]],
        "buildable": True,
        "name": "",
    },
]


@pytest.mark.parametrize("data", DAMAGED_NETWORKS)
def test_damaged_data_gives_one_line_that_names_the_file(data):
    with pytest.raises(FileError, match=r"net\.json is damaged") as caught:
        load_record(Network, data, "net.json")
    assert "\n" not in str(caught.value)


@given(draw.observations, st.data())
def test_missing_part_of_a_trial_is_damage(observation, data):
    damaged = observation.to_dict()
    part = data.draw(st.sampled_from(["network", "setup", "how"]))
    del damaged["trial"][part]
    with pytest.raises(FileError, match=part):
        load_record(Observation, damaged, "it")


def test_field_of_a_newer_version_is_damage():
    with pytest.raises(FileError, match="colour"):
        load_record(Device, {"name": "board", "colour": "red"}, "it")


def test_value_that_a_record_refuses_is_damage():
    with pytest.raises(FileError, match="sleep"):
        load_record(Setup, {"phase": "sleep"}, "it")


@given(draw.observations)
def test_load_record_returns_what_from_dict_returns(observation):
    assert load_record(Observation, observation.to_dict(), "it") == observation


def test_threads_that_convert_a_class_for_the_first_time_wait_for_each_other(monkeypatch):
    @dataclass(frozen=True)
    class Tree(Record):
        name: str
        branches: tuple["Tree", ...] = ()

    compile_slowly = codec._stored_fields

    def wait(cls):
        time.sleep(0.02)
        return compile_slowly(cls)

    monkeypatch.setattr(
        codec, "get_type_hints", lambda cls, **_: {"name": str, "branches": tuple[Tree, ...]}
    )
    monkeypatch.setattr(codec, "_stored_fields", wait)
    tree = Tree("oak", (Tree("a"), Tree("b")))
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda _: tree.to_dict(), range(8)))
        read = list(pool.map(Tree.from_dict, written))
    assert read == [tree] * 8
