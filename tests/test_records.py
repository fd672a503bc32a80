"""Laws of the records: exact JSON, names aside in equality, stable keys, blocks, damaged data."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import FileError, InputError
from joulecast.records import (
    PROVENANCES,
    Device,
    Execution,
    Input,
    Layer,
    Network,
    Observation,
    Profile,
    Setup,
    Sizes,
    StepTotals,
    Trial,
    fold_blocks,
    load_record,
    stable_hash,
    weakest_provenance,
)
from joulecast.testing import records as draw

EVERY_RECORD = st.one_of(
    draw.ops,
    draw.layers,
    draw.inputs,
    draw.totals,
    draw.networks(),
    draw.setups,
    draw.hows,
    draw.trials,
    draw.devices,
    draw.observations,
    draw.profiles(),
)


def through_json(data):
    return json.loads(json.dumps(data, allow_nan=False))


def rename(network, name):
    """The same network under other names, down to the parts of its blocks."""

    def renamed(layer):
        parts = tuple(map(renamed, layer.parts))
        return replace(layer, name=name, parts=parts)

    return replace(network, name=name, layers=tuple(map(renamed, network.layers)))


@given(EVERY_RECORD)
def test_json_brings_a_record_back_exactly(record):
    data = record.to_dict()
    back = type(record).from_dict(through_json(data))
    assert back == record
    # Names are no part of equality, so the JSON is compared as well.
    assert through_json(back.to_dict()) == through_json(data)


@given(draw.trials, draw.names)
def test_names_are_no_part_of_equality_nor_of_the_key(trial, name):
    renamed = replace(trial, network=rename(trial.network, name))
    assert renamed == trial
    assert hash(renamed) == hash(trial)
    assert renamed.key == trial.key


@given(draw.trials, st.booleans(), st.none() | draw.totals)
def test_what_reading_found_out_is_no_part_of_the_key(trial, buildable, totals):
    network = replace(trial.network, buildable=buildable, totals=totals)
    assert replace(trial, network=network).key == trial.key


@given(draw.trials, draw.trials)
def test_keys_are_equal_just_where_trials_are(one, other):
    assert (one.key == other.key) == (one == other)
    assert Trial.from_dict(through_json(one.to_dict())).key == one.key


@given(draw.trials)
def test_every_setting_is_part_of_the_key(trial):
    bigger = replace(trial, setup=replace(trial.setup, batch=trial.setup.batch + 1))
    longer = replace(trial, execution=replace(trial.execution, steps=trial.execution.steps + 1))
    deeper = replace(trial, network=replace(trial.network, layers=(Layer("x"), Layer("y"))))
    assert len({trial.key, bigger.key, longer.key, deeper.key}) == 4


def test_keys_stay_what_they_are_from_version_to_version():
    layer = Layer("linear", Sizes({"cin": 4, "cout": 2, "lead": (), "bias": 1}), name="fc")
    trial = Trial(Network((layer,), Input((4,))), Setup(batch=8), Execution(steps=3))
    assert trial.key == "02d30849ceff0766"
    board = Profile(Device("board"), "torch-2.13.0", "gpu", "measured")
    assert board.key == "79f66f4a79c8e465"
    # Another unit of a device is the same device.
    assert replace(board, device=Device("board", unit="1a2b")).key == board.key


@given(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9) | st.booleans()))
def test_equal_sizes_have_equal_json(sizes):
    as_floats = Sizes({name: float(value) for name, value in sizes.items()})
    assert as_floats == Sizes(sizes)
    assert hash(as_floats) == hash(Sizes(sizes))
    assert json.dumps(as_floats.to_dict()) == json.dumps(Sizes(sizes).to_dict())


@given(draw.sizes)
def test_sizes_are_a_mapping_that_cannot_change(sizes):
    assert Sizes(dict(reversed(list(sizes.items())))) == sizes
    assert dict(sizes) == {name: sizes[name] for name in sizes}
    with pytest.raises(TypeError):
        sizes["cin"] = 1
    assert all(f"{name}=" in repr(sizes) for name in sizes)


@given(draw.devices, draw.names, draw.names, st.sampled_from(PROVENANCES))
def test_what_a_fit_never_mixes_makes_another_profile(device, runtime, covers, provenance):
    profile = Profile(device, runtime, covers, provenance)
    others = [
        replace(profile, device=replace(device, power_mode=device.power_mode + "!")),
        replace(profile, runtime=runtime + "!"),
        replace(profile, covers=covers + "!"),
        replace(profile, provenance=PROVENANCES[PROVENANCES.index(provenance) - 1]),
    ]
    assert len({profile.key, *(other.key for other in others)}) == 5
    assert replace(profile, fits={"flops": {}}).key == profile.key
    grown = replace(device, memory_bytes=device.memory_bytes + 1)
    assert replace(profile, device=grown).key == profile.key


@given(draw.networks())
def test_folding_keeps_every_layer_in_order(network):
    folded = fold_blocks(network)
    starts = dict(network.groups)
    assert len(folded.layers) == len(network.layers) - sum(b - a - 1 for a, b in network.groups)
    flat = []
    for layer in folded.layers:
        if len(flat) in starts:
            assert layer.kind.startswith("block:")
            flat.extend(layer.parts)
        else:
            flat.append(layer)
    # How far back a layer reads is counted in layers of its own view.
    bare = [replace(layer, reads=()) for layer in network.layers]
    assert [replace(layer, reads=()) for layer in flat] == bare
    assert folded.groups == ()


@given(st.lists(draw.leaves, min_size=1, max_size=3), draw.names)
def test_blocks_of_one_structure_are_of_one_kind(parts, name):
    renamed = [
        replace(part, name=name, sizes=Sizes({**part.sizes, "cin": 1 + index}))
        for index, part in enumerate(parts)
    ]
    size = len(parts)
    network = Network((*parts, *renamed), groups=((0, size), (size, 2 * size)))
    first, second = fold_blocks(network).layers
    assert first.kind == second.kind
    other = replace(parts[0], kind="another")
    third = fold_blocks(Network((other, *parts[1:]), groups=((0, size),))).layers[0]
    assert third.kind != first.kind


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
def test_what_cannot_be_is_refused_in_one_line(make):
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)


DAMAGE = [
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


@pytest.mark.parametrize("data", DAMAGE)
def test_damaged_data_gives_one_line_that_names_the_file(data):
    with pytest.raises(FileError, match=r"net\.json is damaged") as caught:
        load_record(Network, data, "net.json")
    assert "\n" not in str(caught.value)


@given(draw.observations, st.data())
def test_a_record_without_one_of_its_fields_is_damaged(observation, data):
    damaged = observation.to_dict()
    where = data.draw(st.sampled_from(["network", "setup", "how"]))
    del damaged["trial"][where]
    with pytest.raises(FileError, match=where):
        load_record(Observation, damaged, "it")


def test_a_field_from_the_future_is_damage_too():
    with pytest.raises(FileError, match="colour"):
        load_record(Device, {"name": "board", "colour": "red"}, "it")


@given(draw.observations)
def test_load_record_gives_what_is_right(observation):
    assert load_record(Observation, observation.to_dict(), "it") == observation


@given(st.lists(st.sampled_from(PROVENANCES)))
def test_the_weakest_provenance_is_the_last_in_the_list(provenances):
    weakest = weakest_provenance(provenances)
    assert all(PROVENANCES.index(weakest) >= PROVENANCES.index(one) for one in provenances)
    assert weakest in (provenances or ["measured"])


@given(st.dictionaries(draw.names, draw.json_values))
def test_a_hash_depends_on_the_value_and_not_on_its_order(data):
    assert stable_hash(dict(reversed(list(data.items())))) == stable_hash(data)
    assert stable_hash(through_json(data)) == stable_hash(data)
    assert stable_hash({**data, "one more": 1}) != stable_hash(data)


def test_totals_and_floats_keep_all_their_digits():
    totals = StepTotals(math.pi, 0.1 + 0.2, 3, 1e-300)
    assert StepTotals.from_dict(through_json(totals.to_dict())) == totals


def test_the_block_view_reads_across_blocks() -> None:
    """What a layer behind a block reads is the block, and a block reads what its parts read."""
    layer = Layer("linear", Sizes({"cin": 2, "cout": 2}))
    skip = replace(layer, reads=(1, 4), join="add")
    network = Network((layer, layer, layer, layer, skip), groups=((1, 3),))
    folded = fold_blocks(network)
    assert [bool(part.parts) for part in folded.layers] == [False, True, False, False]
    assert [part.reads for part in folded.layers] == [(1,), (1,), (1,), (1, 3)]
