"""Values of records are refused by type and range, with where they are and what to give."""

import json
from dataclasses import replace

import pytest

from joulecast.errors import FileError, InputError
from joulecast.families import make_family
from joulecast.input_files import show_value
from joulecast.records import (
    Device,
    Layer,
    Network,
    Observation,
    Profile,
    Setup,
    Sizes,
    Trial,
    load_record,
)
from joulecast.records.network import MOST_LAYERS

SEEN = Observation(Trial(make_family("lenet5"), Setup()), 1.5, device=Device("board"))
HUGE = 10**400


def change(record, path, value):
    """Return the JSON of a record with another value at a path."""
    data = json.loads(json.dumps(record.to_dict()))
    *way, last = path
    inner = data
    for step in way:
        inner = inner[step]
    inner[last] = value
    return data


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
    ],
)
def test_value_of_a_wrong_type_or_range_is_named(path, value, reason):
    with pytest.raises(FileError) as caught:
        load_record(Observation, change(SEEN, path, value), "it")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("totals", "reason"),
    [
        ({"flops": HUGE}, "totals.flops is 1000"),
        ({"between": 10**9}, "totals.between is 1000000000: give at most 1,000,000"),
        ({"unattributed_flops_share": 1.5}, "give a number of at most 1"),
        ({"notes": [3]}, "totals.notes[0] is 3: give a text"),
        ({"ops_without_rule": [["sort"]]}, "totals.ops_without_rule[0] has 1 values, 2 expected"),
    ],
)
def test_totals_are_within_limits(totals, reason):
    given = {"flops": 1.0, "size_bytes": 1.0, "params": 1, **totals}
    with pytest.raises(InputError) as caught:
        Network.from_dict({**Network().to_dict(), "totals": given})
    assert reason in str(caught.value)


def test_profile_without_observations_needs_a_known_provenance():
    data = Profile(Device("board"), "", "cpu", "measured").to_dict()
    assert Profile.from_dict(data).provenance == "measured"
    with pytest.raises(InputError, match="provenance is 'mine'"):
        Profile.from_dict({**data, "provenance": "mine"})


def test_number_of_layers_and_their_depth_are_limited():
    layer = {"kind": "linear", "sizes": {}}
    network = Network().to_dict()
    many = {**network, "layers": [layer] * (MOST_LAYERS + 1)}
    with pytest.raises(InputError, match="layers has 20,001 items: give at most 20,000"):
        Network.from_dict(many)
    for depth, is_allowed in ((8, True), (9, False), (300, False)):
        nested = layer
        for _ in range(depth):
            nested = {**layer, "parts": [nested]}
        if is_allowed:
            assert Layer.from_dict(nested).parts
        else:
            with pytest.raises(InputError, match="more than 8 levels deep"):
                Layer.from_dict(nested)


def test_depth_is_counted_anew_after_an_error():
    deep = {"kind": "linear", "sizes": {}}
    for _ in range(20):
        deep = {**deep, "parts": [deep]}
    for _ in range(9):
        with pytest.raises(InputError, match="levels deep"):
            Layer.from_dict(deep)
    block = Layer("block", parts=(Layer("linear", Sizes({})),))
    assert Layer.from_dict(block.to_dict()) == block


@pytest.mark.parametrize(
    "changes",
    [
        {"energy_j": float("nan")},
        {"duration_s": -1.0},
        {"provenance": "mine"},
        {"taken_at_s": 1e300},
        {"count": "one"},
    ],
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
