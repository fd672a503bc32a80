"""Profile and network files: exact both ways, checked when read, written whole or not at all."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import FileError, InputError
from joulecast.families import FAMILIES, make_family
from joulecast.files import read_network, read_profile, write_network, write_profile
from joulecast.records import Device, Network, Observation, Profile, Setup, Trial
from joulecast.testing import records as draw

SEEN = Observation(Trial(make_family("lenet5"), Setup()), 1.5, device=Device("board"), covers="cpu")
PROFILE = Profile(Device("board"), "", "cpu", "measured", (SEEN,), {"flops": {"slope": 0.1}})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.json"


def read_badly(read, path):
    """The one line that reading gives."""
    with pytest.raises(FileError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def change(path, **fields):
    envelope = json.loads(path.read_text())
    envelope.update(fields)
    path.write_text(json.dumps({k: v for k, v in envelope.items() if v is not None}))


@given(draw.profiles())
def test_a_profile_comes_back_equal(profile):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        write_profile(profile, path)
        back = read_profile(path)
        assert back == profile
        text = path.read_text()
        write_profile(back, path)
        assert path.read_text() == text


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_comes_back_equal(path, family):
    network = make_family(family)
    write_network(network, path)
    assert read_network(path) == network
    assert read_network(str(path)).name == network.name


def test_every_observation_and_layer_has_a_line(path):
    write_profile(replace(PROFILE, observations=(SEEN, replace(SEEN, energy_j=2.0))), path)
    lines = path.read_text().splitlines()
    assert sum('"energy_j"' in line for line in lines) == 2
    write_network(make_family("lenet5"), path)
    assert sum('"sizes"' in line for line in path.read_text().splitlines()) == 5


def test_a_campaign_fits_in_two_megabytes(path):
    network = make_family("cnn5")
    network = replace(network, layers=network.layers[:2] + network.layers[-1:])
    seen = tuple(
        replace(SEEN, trial=Trial(network, Setup(batch=number)), energy_j=1 / number)
        for number in range(1, 201)
    )
    write_profile(replace(PROFILE, observations=seen), path)
    assert path.stat().st_size < 2e6


def test_how_a_file_is_indented_does_not_matter(path):
    write_profile(PROFILE, path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert read_profile(path) == PROFILE


@given(st.data())
def test_a_changed_character_never_goes_unnoticed(data):
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


@given(st.integers(0, 2000))
def test_a_file_cut_short_is_damaged(length):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        write_profile(PROFILE, path)
        path.write_bytes(path.read_bytes()[:length])
        assert "no JSON, or damaged" in read_badly(read_profile, path)


def test_a_newer_file_asks_for_an_upgrade(path):
    write_profile(PROFILE, path)
    change(path, version=2)
    message = read_badly(read_profile, path)
    assert "newer Joulecast (format 2; this one reads 1): upgrade" in message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": "one"}, "version"),
        ({"version": 0}, "version"),
        ({"version": None}, "version"),
        ({"sha256": "0" * 64}, "checksum"),
        ({"sha256": None}, "sha256 is missing"),
        ({"profile": None}, "profile is missing"),
        ({"profile": [1]}, "profile is missing"),
        ({"profile": {}}, "checksum"),
        ({"format": "joulecast-network"}, "joulecast-network"),
        ({"format": None}, "no joulecast-profile"),
        ({"format": 3}, "no joulecast-profile"),
    ],
)
def test_a_wrong_envelope_is_named(path, fields, reason):
    write_profile(PROFILE, path)
    change(path, **fields)
    assert reason in read_badly(read_profile, path)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b"null", b"\xff\xfe\xff", b"[" * 10**5, b"NaN"]
)
def test_what_is_no_file_of_ours_is_refused(path, content):
    path.write_bytes(content)
    read_badly(read_profile, path)
    read_badly(read_network, path)


def test_missing_files_and_folders_are_named(path):
    assert "there is no file" in read_badly(read_profile, path)
    assert "cannot be read" in read_badly(read_network, path.parent)


@pytest.mark.parametrize(
    "changes",
    [
        {"device": Device("board", power_mode="low")},
        {"runtime": "torch-2.13.0"},
        {"covers": "gpu"},
        {"provenance": "modelled"},
    ],
)
def test_a_profile_that_mixes_is_refused(path, changes):
    write_profile(replace(PROFILE, observations=(SEEN, replace(SEEN, **changes))), path)
    assert "observation 2" in read_badly(read_profile, path)


def test_a_network_can_be_written_by_hand(path):
    write_network(make_family("lenet5"), path)
    change(path, sha256=None)
    assert read_network(path) == make_family("lenet5")


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ({"kind": "teleport", "sizes": {}}, "teleport"),
        ({"kind": "linear", "sizes": {"cin": 3}}, "layer 1 (linear)"),
        ({"kind": "linear", "sizes": {"cin": 3, "cout": "x", "lead": [], "bias": 1}}, "layer 1"),
        ({"kind": "pool", "sizes": {"fn": "max"}}, "shape"),
        ({"sizes": {}}, "kind"),
        (3, "damaged"),
    ],
)
def test_layers_that_cannot_be_are_named(path, layer, reason):
    write_network(Network(), path)
    network = {**Network().to_dict(), "layers": [layer]}
    change(path, sha256=None, network=network)
    assert reason in read_badly(read_network, path)


def test_numbers_that_are_none_are_not_written(path):
    with pytest.raises(InputError, match="finite"):
        write_profile(replace(PROFILE, fits={"flops": {"slope": float("nan")}}), path)
    assert not path.exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    write_profile(PROFILE, path)
    before = path.read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device") as caught:
        write_profile(replace(PROFILE, fits={}), path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", "missing/some.json", "file/some.json"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="give another path") as caught:
        write_network(Network(), tmp_path / name)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
