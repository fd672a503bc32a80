"""Profile and network files: exact round trips, checked when read, written atomically."""

import base64
import json
import os
import re
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record_strategies as draw
from benchmarks.robustness.hostile_inputs import pack, seal
from joulecast.families import FAMILIES, make_family
from joulecast.operators import network_work, peak_memory
from joulecast.records import (
    Device,
    Network,
    Observation,
    Profile,
    Setup,
    Trial,
    find_fit_count,
    fold_blocks,
)
from joulecast.store import files
from joulecast.store.files import read_network, read_profile, write_network, write_profile
from joulecast.system.errors import FileError, InputError
from joulecast.system.files import MOST_UNPACKED_BYTES
from refusals import refusal

SEEN = Observation(Trial(make_family("lenet5"), Setup()), 1.5, device=Device("board"), covers="cpu")
PROFILE = Profile(Device("board"), "", "cpu", "measured", (SEEN,), {"flops": {"slope": 0.1}})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.json"


def read_error(read, path):
    """Return the one-line error that reading raises."""
    with refusal(FileError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def change(path, **fields):
    envelope = json.loads(path.read_text())
    envelope.update(fields)
    path.write_text(json.dumps({k: v for k, v in envelope.items() if v is not None}))


@given(draw.profiles())
def test_profile_round_trip(profile):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        write_profile(profile, path)
        back = read_profile(path)
        assert back == profile
        text = path.read_text()
        write_profile(back, path)
        assert path.read_text() == text
        path.write_text(json.dumps(json.loads(text), indent=4))
        assert read_profile(path) == profile
        # Version 1 of the format packed nothing.
        path.write_bytes(seal("profile", 1, profile.to_dict()))
        assert read_profile(path) == profile


@pytest.mark.parametrize("family", FAMILIES)
def test_network_round_trip(path, family):
    network = make_family(family)
    write_network(network, path)
    assert read_network(path) == network
    assert read_network(str(path)).name == network.name
    # Every layer has its own line.
    lines = path.read_text().splitlines()
    assert sum('"reads"' in line or '"kind"' in line for line in lines) == len(network.layers)
    change(path, sha256=None)
    assert read_network(path) == network


def test_reading_a_fit_decodes_no_other(path, monkeypatch):
    write_profile(replace(PROFILE, fits={"flops": {"slope": 0.1}, "forest": {"trees": 3}}), path)
    profile = read_profile(path)
    assert set(profile.fits) == {"flops", "forest"}
    decompress = Mock(side_effect=zlib.decompress)
    monkeypatch.setattr(files, "decompress", decompress)
    assert profile.fits["forest"] == profile.fits["forest"] == {"trees": 3}
    decompress.assert_called_once()


def test_file_keeps_what_each_fit_was_made_from(path):
    fits = {"forest": {"trees": 3}}
    write_profile(replace(PROFILE, observations=(SEEN,) * 4).add_fits(fits), path)
    read = read_profile(path).fits
    assert find_fit_count(read, "forest") == 4
    # Of the fit that came without a count it is unknown.
    assert find_fit_count(read, "flops") is None


@given(st.data())
def test_changed_byte_is_detected(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        write_profile(PROFILE, path)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        try:
            assert read_profile(path) == PROFILE
        except FileError as error:
            assert "\n" not in str(error)
        write_profile(PROFILE, path)
        content = path.read_bytes().rstrip()
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        assert "not JSON, or damaged" in read_error(read_profile, path)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": 3}, "newer version of Joulecast (format 3; this one reads 2): upgrade"),
        *(({"version": version}, "version") for version in ("one", 0, None)),
        ({"sha256": "0" * 64}, "checksum"),
        ({"sha256": None}, "sha256 is missing"),
        *(({"profile": content}, "profile is missing") for content in (None, [1])),
        ({"profile": {}}, "checksum"),
        ({"format": "joulecast-network"}, "joulecast-network"),
        *(({"format": name}, "not a joulecast-profile") for name in (None, 3)),
    ],
)
def test_wrong_envelope_is_explained(path, fields, reason):
    write_profile(PROFILE, path)
    change(path, **fields)
    assert reason in read_error(read_profile, path)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b"null", b"\xff\xfe\xff", b"[" * 10**5, b"NaN"]
)
def test_foreign_file_is_refused(path, content):
    assert "there is no file" in read_error(read_profile, path)
    assert "cannot be read" in read_error(read_network, path.parent)
    path.write_bytes(content)
    read_error(read_profile, path)
    read_error(read_network, path)


def read_observations(path):
    return list(read_profile(path).observations)


@pytest.mark.parametrize(
    "changes",
    [
        {"device": Device("board", power_mode="low")},
        {"runtime": "torch-2.13.0"},
        {"covers": "gpu"},
        {"provenance": "modelled"},
    ],
)
def test_profile_that_mixes_observations_is_refused(path, changes):
    mixed = replace(PROFILE, observations=(SEEN, replace(SEEN, **changes)))
    with pytest.raises(InputError, match="observation 2"):
        write_profile(mixed, path)
    assert not path.exists()
    path.write_bytes(seal("profile", 1, mixed.to_dict()))
    assert "observation 2" in read_error(read_profile, path)
    write_profile(replace(PROFILE, observations=(SEEN, SEEN)), path)
    change_content(path, observations=pack([one.to_dict() for one in mixed.observations]))
    assert "observation 2" in read_error(read_observations, path)


def change_content(path, **fields):
    """Change fields of a profile file and its checksum."""
    content = {**json.loads(path.read_text())["profile"], **fields}
    path.write_bytes(seal("profile", 2, content))


def read_fit(path):
    return read_profile(path).fits["flops"]


def pack_observations(data, reason):
    return read_observations, {"observations": pack(data)}, reason


@pytest.mark.parametrize(
    ("read", "fields", "reason"),
    [
        (read_observations, {"observations": "no base64!"}, "list of observations"),
        (read_observations, {"observations": "bm8gemxpYg=="}, "list of observations"),
        pack_observations({}, "list of observations"),
        pack_observations([], "should have 1 observations"),
        pack_observations([{}], "observation 1"),
        pack_observations([3], "observation 1"),
        (read_fit, {"fits": {"flops": {"packed": "no base64!"}}}, "fit of flops"),
    ],
)
def test_damage_is_named_when_it_is_read(path, read, fields, reason):
    write_profile(PROFILE, path)
    change_content(path, **fields)
    if "fits" in fields:
        assert read_profile(path).observations == (SEEN,)
    else:
        assert read_profile(path).fits == PROFILE.fits
    message = read_error(read, path)
    assert reason in message and "export it again" in message


def test_size_is_limited_when_written_read_and_unpacked(path, monkeypatch):
    bomb = base64.b64encode(zlib.compress(b"[" + b" " * MOST_UNPACKED_BYTES + b"]")).decode()
    assert len(bomb) < 2**20
    write_profile(PROFILE, path)
    change_content(path, observations=bomb)
    assert "unpacks to more than 128 MiB" in read_error(read_observations, path)
    path.unlink()
    for fit, reason in (("x" * MOST_UNPACKED_BYTES, "larger than 128"), (float("nan"), "finite")):
        with pytest.raises(InputError, match=reason):
            write_profile(replace(PROFILE, fits={"flops": {"text": fit}}), path)
        assert not path.exists()
    monkeypatch.setattr(files, "MOST_JSON_BYTES", 2**20)
    path.write_bytes(b" " * (2**20 + 1))
    assert "larger than 1 MiB" in read_error(read_network, path)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        *(("[", f"[{number}, ", "damaged") for number in ("1e999", "-1e999", "1" * 5000)),
        ("sha256", "sha255", "'sha255'|sha256 is missing"),
    ],
)
def test_changed_text_is_damage(path, old, new, reason):
    for write, read, record in (
        (write_profile, read_profile, PROFILE),
        (write_network, read_network, make_family("lenet5")),
    ):
        write(record, path)
        path.write_text(path.read_text().replace(old, new, 1))
        assert re.search(reason, read_error(read, path))


@pytest.mark.parametrize("count", [-1, "one", None, True])
def test_impossible_number_of_observations_is_damage(path, count):
    write_profile(PROFILE, path)
    summary = json.loads(path.read_text())["profile"]["summary"]
    change_content(path, summary={**summary, "count": count})
    assert "summary.count" in read_error(read_profile, path)


@pytest.fixture(scope="module")
def plain():
    """Return the JSON of a network with five layers: two convolutions, three linear layers."""
    return make_family("lenet5").to_dict()


def write_by_hand(path, network):
    path.write_text(json.dumps({"format": "joulecast-network", "version": 1, "network": network}))


BAD_LINEAR = {"kind": "linear", "sizes": {"cin": 3, "cout": "x", "lead": [], "bias": 1}}


@pytest.mark.parametrize(
    ("place", "value", "part"),
    [
        (("layers",), [{"kind": "teleport", "sizes": {}}], "teleport"),
        (("layers",), [BAD_LINEAR], "layer 1"),
        (("layers",), [{"kind": "pool", "sizes": {"fn": "max"}}], "kernel"),
        (("layers",), [{"sizes": {}}], "kind"),
        (("layers", 0, "sizes"), [7], "layers[0].sizes is [7]: give an object"),
        (("layers", 0), 3, "layers[0] is 3: give an object"),
        (("layers", 0, "sizes", "cin"), 0, "layer 1 (conv1, conv2d) is invalid: cin is 0"),
        (("layers", 0, "sizes", "cin"), 1.5, "cin is 1.5"),
        (("layers", 0, "sizes", "cin"), 10**30, "give at most 1,000,000,000,000"),
        (("layers", 0, "sizes", "stride"), [0, 1], "stride is 0"),
        (("layers", 0, "sizes", "stride"), 2, "stride is 2; give a list"),
        (("layers", 0, "sizes", "padding"), [-1, 0], "padding is -1"),
        (("layers", 0, "sizes", "kernel"), [5], "conv2d needs 2 numbers"),
        (("layers", 0, "sizes", "kernel"), [99, 99], "does not fit"),
        (("layers", 0, "sizes", "groups"), 4, "cin is 1; give a multiple"),
        (("layers", 0, "sizes", "bias"), 2, "bias is 2"),
        (("layers", 0, "sizes", "widht"), 2, "no size 'widht'"),
        (("layers", 0, "tail"), [{"kind": "linear", "sizes": {}}], "linear cannot be in a tail"),
        (("layers", 0, "tail", 1, "sizes", "kernel"), [2], "do not fit together"),
        (("layers", 0, "calls"), 0, "calls is 0"),
        (("layers", 0, "join"), "glue", "join is 'glue'"),
        (("layers", 0, "reads"), [0], "layers[0].reads[0] is 0: give a whole number of at least 1"),
        (("layers", 0, "reads"), [], "reads is empty"),
        (("layers", 2, "calls"), 2, "layer 3 (fc1, linear) is invalid: calls is 2"),
        (("layers", 2, "tied"), True, "tied is true"),
        (("layers", 2, "sizes", "cin"), 7, "its input is [7], but it reads [400]"),
        (("layers", 3, "reads"), [1, 2], "is [120], but it reads [120], [400] (join none)"),
        (("groups",), [[0, 0]], "group [0, 0]"),
        (("groups",), [[0, 6]], "group [0, 6]"),
        (("groups",), [[0, 2], [1, 3]], "group [1, 3]"),
        (("input", "shape"), [0, 2], "input.shape[0] is 0"),
        (("input", "shape"), [1, 32, 32], "layer 1 (conv1, conv2d) is invalid: its input is"),
        (("input", "vocabulary"), -1, "vocabulary is -1"),
    ],
)
def test_impossible_value_is_named(path, plain, place, value, part):
    write_by_hand(path, draw.put(plain, place, value))
    assert part in read_error(read_network, path)


def test_depth_and_directions_of_recurrent_layers_are_limited(path):
    network = make_family("lstm").to_dict()
    for name in ("depth", "bidirectional"):
        write_by_hand(path, draw.put(network, ("layers", 1, "sizes", name), 10**9))
        assert f"{name} is 1000000000" in read_error(read_network, path)


def test_only_a_buildable_network_must_have_matching_shapes(path, plain):
    network = json.loads(json.dumps({**plain, "buildable": False}))
    network["layers"][2].update(calls=3, reads=[])
    network["layers"][3]["tied"] = True
    network["input"]["shape"] = [4, 4]
    write_by_hand(path, network)
    assert read_network(path) == Network.from_dict(network)


values = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from([10**18, 0.5, 1e300, "add", "", [], [0], [2, 2, 2], {}, {"a": 1}])
)


@given(st.data())
def test_any_content_is_read_and_counted_or_refused(data):
    network = make_family(data.draw(st.sampled_from(["lenet5", "lstm", "transformer:4,1"])))
    content = network.to_dict()
    inner, key = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(inner[key], (dict, list)) and inner[key] and data.draw(st.integers(0, 4)):
        inner = inner[key]
        key = data.draw(
            st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner)))
        )
    inner[key] = data.draw(values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.json"
        write_by_hand(path, content)
        try:
            found = read_network(path)
        except FileError as error:
            assert "\n" not in str(error) and str(path) in str(error)
            return
        fold_blocks(found)
        assert network_work(found, Setup()).total.size_bytes >= 0
        assert peak_memory(found, Setup()) >= 0


def test_failed_write_leaves_only_the_old_file(path, monkeypatch):
    for name in ("", "missing/some.json", "some.json/other.json"):
        path.touch()
        with refusal(FileError, "give another path"):
            write_network(Network(), path.parent / name)
    write_profile(PROFILE, path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with refusal(FileError, "No space left on device"):
        write_profile(replace(PROFILE, fits={}), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("token", [None, "guessed"])
def test_planted_link_is_not_followed(tmp_path, path, monkeypatch, token):
    victim = tmp_path / "victim"
    victim.write_text("keep me")
    # The first name is that of earlier versions.
    (path.parent / f".{path.name}.{token or os.getpid()}.partial").symlink_to(victim)
    if token is None:
        write_profile(PROFILE, path)
        assert read_profile(path) == PROFILE
    else:
        monkeypatch.setattr("secrets.token_hex", lambda count: token)
        with pytest.raises(FileError, match="File exists"):
            write_profile(PROFILE, path)
    assert victim.read_text() == "keep me"


def test_longest_name_of_a_file_can_be_written(tmp_path):
    path = tmp_path / f"{'ä' * 125}.json"
    write_network(Network(), path)
    assert read_network(path) == Network()
    assert list(tmp_path.iterdir()) == [path]
