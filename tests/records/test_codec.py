"""The codec: exact round trips, options of fields, and errors that name what is wrong."""

import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record_strategies as draw
from joulecast.families import make_family
from joulecast.records import (
    Device,
    Layer,
    Network,
    Observation,
    Setup,
    Sizes,
    Trial,
    codec,
    load_record,
    stable_hash,
)
from joulecast.records.codec import (
    Record,
    add_codec,
    always_stored,
    cache_on_record,
    load_partial,
    not_stored,
    omit_default,
)
from joulecast.records.network import MOST_LAYERS
from joulecast.system.errors import FileError, InputError
from joulecast.system.files import parse_json, show_value
from refusals import refusal

# Profiles include all other records.
EVERY_RECORD = draw.layers | draw.networks() | draw.observations | draw.profiles()


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


def test_fields_are_written_as_they_are_declared():
    assert Point.from_dict({"x": 1.0}) == Point(1.0)
    assert Point(1.0, 2.0).to_dict() == {"x": 1.0, "y": 2.0}
    assert Point(1.0, 2.0, "a").to_dict() == {"x": 1.0, "y": 2.0, "label": "a"}
    record = Everything((1, Point(2.0)), renamed=7, cache=9)
    data = record.to_dict()
    assert data["other_name"] == 7 and data["needed"] == 4 and not {"renamed", "cache"} & set(data)
    assert Everything.from_dict(data) == replace(record, cache=5)


EVERYTHING = {"pair": [1, {"x": 2.0}], "needed": 4}


@pytest.mark.parametrize(
    ("cls", "data", "reason"),
    [
        (Point, {"x": 1.0, "colour": "red"}, "Point has no field 'colour'"),
        (Point, {"y": 1.0}, "x is missing"),
        (Everything, {"pair": [1, {"x": 2.0}]}, "needed is missing"),
        (Everything, {**EVERYTHING, "cache": 9}, "cache"),
        (Everything, {**EVERYTHING, "renamed": 7}, "renamed"),
        (Everything, {**EVERYTHING, "pair": []}, "pair has 0 values, 2 expected"),
        (Everything, {**EVERYTHING, "pair": [1]}, "pair has 1 values, 2 expected"),
        (Everything, {**EVERYTHING, "pair": [1, {"x": 1.0}, 3]}, "pair has 3 values"),
    ],
)
def test_other_fields_are_refused(cls, data, reason):
    with pytest.raises(InputError, match=reason):
        cls.from_dict(data)


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


EMPTY = Network().to_dict()
SEEN = Observation(Trial(make_family("lenet5"), Setup()), 1.5, device=Device("board"))


@pytest.mark.parametrize(
    "data",
    [
        *(None, [], "text", {}),
        *({**EMPTY, "layers": 3}, {**EMPTY, "layers": [{"kind": "linear"}]}),
        *({**EMPTY, "input": None}, {**EMPTY, "groups": [[1]]}),
    ],
)
def test_damaged_data_gives_one_line_that_names_the_file(data):
    with refusal(FileError, r"net\.json is damaged"):
        load_record(Network, data, "net.json")


@pytest.mark.parametrize("part", ["network", "setup", "how"])
def test_missing_part_of_a_trial_is_damage(part):
    damaged = SEEN.to_dict()
    del damaged["trial"][part]
    with pytest.raises(FileError, match=part):
        load_record(Observation, damaged, "it")


def test_several_threads_may_convert_a_class_for_the_first_time(monkeypatch):
    @dataclass(frozen=True)
    class Tree(Record):
        name: str
        branches: tuple["Tree", ...] = ()

    compile_fields = codec._stored_fields

    def wait(cls):
        time.sleep(0.02)
        return compile_fields(cls)

    monkeypatch.setattr(
        codec, "get_type_hints", lambda cls, **_: {"name": str, "branches": tuple[Tree, ...]}
    )
    monkeypatch.setattr(codec, "_stored_fields", wait)
    tree = Tree("oak", (Tree("a"), Tree("b")))
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda _: tree.to_dict(), range(8)))
        read = list(pool.map(Tree.from_dict, written))
    assert read == [tree] * 8


HUGE = 10**400
TOTALS = ("trial", "network", "totals")


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("energy_j",), "1.5", "energy_j is '1.5': give a number"),
        (("energy_j",), True, "energy_j is True: give a number"),
        (("energy_j",), float("inf"), "energy_j is inf: give a finite number"),
        (("energy_j",), float("nan"), "energy_j is nan: give a finite number"),
        (("energy_j",), -1.0, "energy_j is -1.0: give a number of at least 0"),
        (("energy_j",), HUGE, "give a number of at most 1e+15"),
        (("energy_j",), 5e-324, "give 0, or a number of at least 1e-60"),
        (("taken_at_s",), 1e300, "taken_at_s is 1e+300: give a number of at most 2.53402e+11"),
        (("provenance",), "mine", "provenance is 'mine': choose one of measured, imported"),
        (("provenance",), ["measured"], "provenance is ['measured']: give a text"),
        (("run",), "\ud800", "run is '\\ud800': give text that is valid Unicode"),
        (("count",), 1.5, "count is 1.5: give a whole number of at least 0"),
        (("count",), 10**10, "count is 10000000000: give at most 1,000,000,000"),
        (("device", "memory_bytes"), "much", "device.memory_bytes is 'much'"),
        (("device",), None, "device is None: give an object with the fields of a Device"),
        (("trial", "setup", "batch"), [], "trial.setup.batch is []: give a whole number"),
        (("trial", "setup", "threads"), float("inf"), "trial.setup.threads is inf"),
        (("trial", "setup", "cudnn_benchmark"), 1, "cudnn_benchmark is 1: give true or false"),
        (("trial", "network", "layers", 1, "kind"), None, "trial.network.layers[1].kind is None"),
        (("trial", "network", "layers"), {"0": {}}, "layers is {'0': {}}: give a list"),
        (("trial", "network", "groups"), [[0, "b"]], "groups[0][1] is 'b'"),
        (("trial", "network", "input", "shape"), [1] * 17, "shape has 17 items: give at most 16"),
        (("trial", "network", "layers", 0, "sizes"), {"cin": [[1]]}, "sizes.cin is [1]"),
        (("trial", "network", "layers", 0, "sizes"), {"cin": {}}, "sizes.cin is {}"),
        (("trial", "network", "layers", 0, "sizes"), {"cin": [1] * 17}, "at most 16 integers"),
        (("trial", "network", "layers", 0, "sizes"), {"p": float("inf")}, "sizes.p is inf"),
        (("trial", "network", "layers", 0, "sizes"), {"fn": "\udfff"}, "valid Unicode"),
        (TOTALS, {"flops": HUGE}, "totals.flops is 1000"),
        (TOTALS, {"between": 10**9}, "totals.between is 1000000000: give at most 1,000,000"),
        (TOTALS, {"unattributed_flops_share": 1.5}, "give a number of at most 1"),
        (TOTALS, {"notes": [3]}, "totals.notes[0] is 3: give a text"),
        (TOTALS, {"ops_without_rule": [["sort"]]}, "ops_without_rule[0] has 1 values, 2 expected"),
    ],
)
def test_value_of_a_wrong_type_or_range_is_named(path, value, reason):
    if path == TOTALS:
        value = {"flops": 1.0, "size_bytes": 1.0, "params": 1, **value}
    with refusal(FileError, re.escape(reason)):
        load_record(Observation, draw.put(through_json(SEEN.to_dict()), path, value), "it")


def test_number_of_layers_and_their_depth_are_limited():
    layer = {"kind": "linear", "sizes": {}}
    network = Network().to_dict()
    many = {**network, "layers": [layer] * (MOST_LAYERS + 1)}
    with pytest.raises(InputError, match="layers has 20,001 items: give at most 20,000"):
        Network.from_dict(many)
    # Of blocks in blocks, JSON allows as many levels as Python can follow.
    for depth, is_allowed in ((45, True), (60, False)):
        nested = layer
        for _ in range(depth):
            nested = {**layer, "parts": [nested]}
        text = json.dumps({**network, "layers": [nested]})
        if is_allowed:
            assert Network.from_dict(parse_json(text)).to_dict()["layers"] == [nested]
        else:
            with pytest.raises(ValueError, match="nested too deeply"):
                parse_json(text)
    block = Layer("block", parts=(Layer("linear", Sizes({})),))
    assert Layer.from_dict(block.to_dict()) == block


@pytest.mark.parametrize(
    "changes",
    [{"energy_j": float("nan")}, {"provenance": "mine"}, {"taken_at_s": 1e300}, {"count": "one"}],
)
def test_observation_is_checked_when_it_is_made(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        replace(SEEN, **changes)


@pytest.mark.parametrize(
    "value", [[], "a", 1.5, float("nan"), float("inf"), None, True, 10**5000], ids=show_value
)
def test_setup_takes_whole_numbers_only(value):
    for name in ("batch", "threads"):
        with pytest.raises(InputError, match=f"^{name} is .*: give") as caught:
            Setup(**{name: value})
        assert len(str(caught.value)) < 200


def test_unknown_fields_are_left_out_at_every_depth():
    more = {"maybe": {"x": 1.0, "z": 2}, "points": [{"x": 3.0, "z": 4}], "z": 1}
    expected = Everything((1, Point(2.0)), maybe=Point(1.0), points=(Point(3.0),))
    assert load_partial(Everything, EVERYTHING | more, "it") == expected
    assert load_partial(Everything, EVERYTHING | {"maybe": None}, "it").maybe is None


@pytest.mark.parametrize(
    "data", [[], {}, *(EVERYTHING | one for one in ({"maybe": 3}, {"points": [{}]}, {"pair": 1}))]
)
def test_what_does_not_fit_is_refused(data):
    with pytest.raises(FileError, match="it is damaged"):
        load_partial(Everything, data, "it")


def test_function_runs_once_for_each_record():
    calls = []

    @cache_on_record
    def double_batch(setup):
        calls.append(setup)
        return 2 * setup.batch

    setup = Setup(batch=8)
    assert double_batch(setup) == double_batch(setup) == 16
    assert len(calls) == 1
    assert double_batch(replace(setup, batch=9)) == 18
    # What is cached is no part of the record.
    assert setup == Setup(batch=8) and setup.to_dict() == Setup(batch=8).to_dict()
    assert hash(setup) == hash(Setup(batch=8))


@given(st.dictionaries(draw.names, draw.json_values))
def test_hash_depends_on_the_value_and_not_on_its_order(data):
    assert stable_hash(dict(reversed(list(data.items())))) == stable_hash(data)
    assert stable_hash(json.loads(json.dumps(data))) == stable_hash(data)
    assert stable_hash({**data, "one more": 1}) != stable_hash(data)
