"""Folders are trusted once, by full path, and only if nobody else can fill them."""

from __future__ import annotations

import os

import pytest

from joulecast.features.trust import check_trusted, find_trust_file, trust_folder
from joulecast.system.errors import FileError, InputError


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("JOULECAST_STORE", raising=False)


def is_trusted(*places):
    try:
        check_trusted(*places)
    except InputError:
        return False
    return True


@pytest.fixture
def lab(tmp_path):
    folder = tmp_path / "lab"
    (folder / "inner").mkdir(parents=True)
    return folder


def test_a_folder_and_those_below_are_trusted(tmp_path, lab):
    assert not is_trusted(lab / "jobs.toml")
    assert trust_folder(lab) == lab
    assert is_trusted(lab / "jobs.toml") and is_trusted(lab / "inner" / "jobs.toml")
    assert is_trusted(lab, lab / "jobs.toml", lab / "inner")
    assert not is_trusted(lab / "jobs.toml", tmp_path)
    for other in (tmp_path / "jobs.toml", tmp_path / "laboratory/jobs.toml", lab / "../jobs.toml"):
        assert not is_trusted(other)


def test_trust_follows_links_and_the_current_folder(tmp_path, lab, monkeypatch):
    (tmp_path / "link").symlink_to(lab)
    (lab / "away.toml").symlink_to(tmp_path / "jobs.toml")
    monkeypatch.chdir(lab)
    assert trust_folder(".") == trust_folder(tmp_path / "link") == lab
    assert is_trusted("jobs.toml") and is_trusted(tmp_path / "link" / "jobs.toml")
    assert not is_trusted("away.toml")
    assert find_trust_file().read_text() == f"{lab}\n"


def test_lines_can_be_removed_and_edited(tmp_path, lab):
    trust_folder(lab)
    other = tmp_path / "other"
    other.mkdir()
    find_trust_file().write_text(f"# mine\n\n.\n{other}")
    assert is_trusted(other / "x") and not is_trusted(lab / "x") and not is_trusted("x")
    trust_folder(lab)
    assert is_trusted(other / "x") and is_trusted(lab / "x")


def test_odd_names_trust_nothing_else(tmp_path):
    for name in ("a b", "ü", os.fsdecode(b"\xff"), "x\u2028y", "x\x85y"):
        folder = tmp_path / name
        folder.mkdir()
        trust_folder(folder)
        assert is_trusted(folder / "f")
    (tmp_path / "x").mkdir()
    assert not is_trusted(tmp_path / "x" / "f")


def test_folders_that_cannot_be_trusted_are_refused(tmp_path, lab):
    with pytest.raises(InputError, match="there is no folder"):
        trust_folder(tmp_path / "nowhere")
    (tmp_path / "a\nb").mkdir()
    with pytest.raises(InputError, match="line break"):
        trust_folder(tmp_path / "a\nb")
    lab.chmod(0o777)
    with pytest.raises(InputError, match="everybody can write"):
        trust_folder(lab)
    assert not is_trusted(lab / "x")


def test_a_list_that_cannot_be_written_is_reported(tmp_path, lab, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(FileError, match="cannot write"):
        trust_folder(lab)
    assert not is_trusted(lab / "x")


def test_advice_is_a_command(tmp_path):
    (tmp_path / "my lab").mkdir()
    for place in (tmp_path / "my lab" / "jobs.toml", tmp_path / "my lab"):
        with pytest.raises(InputError, match=f"joulecast --trust '{tmp_path}/my lab'`"):
            check_trusted(place)
