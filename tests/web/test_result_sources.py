"""Results of a folder: recognised by their content, links and other files left out."""

import json
import os

import pytest

from joulecast.errors import MissingError
from joulecast.reports.result_files import read_result
from joulecast.web import result_sources
from joulecast.web.result_sources import choose_source, list_result_files

SCORE = {"devices": [], "scale": {}, "notes": []}


def test_files_are_recognised_by_their_content_and_the_latest_comes_first(tmp_path):
    for age, name in enumerate(["new.json", "old.json"]):
        (tmp_path / name).write_text(json.dumps(SCORE))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "score.txt").write_text(json.dumps(SCORE))
    (tmp_path / "folder.json").mkdir()
    found = list_result_files(tmp_path, "score")
    assert [one.key for one in found] == ["new.json", "old.json"]
    assert found[0].load() == SCORE
    assert list_result_files(tmp_path, "plan") == []
    assert list_result_files(None, "score") == []
    assert list_result_files(tmp_path / "none", "score") == []


def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(SCORE))
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "link.json").symlink_to(outside)
    assert list_result_files(folder, "score") == []


def test_file_that_changes_is_read_again(tmp_path):
    path = tmp_path / "score.json"
    path.write_text(json.dumps(SCORE))
    assert list_result_files(tmp_path, "score")[0].load() == SCORE
    path.write_text(json.dumps({**SCORE, "notes": ["new"]}))
    assert list_result_files(tmp_path, "score")[0].load()["notes"] == ["new"]


def test_files_of_a_large_folder_are_read_once(tmp_path, monkeypatch):
    for number in range(100):
        (tmp_path / f"{number}.json").write_text(json.dumps(SCORE))
    reads = []

    def read(path):
        reads.append(path.name)
        return read_result(path)

    monkeypatch.setattr(result_sources, "read_result", read)
    assert len(list_result_files(tmp_path, "score")) == 100
    assert list_result_files(tmp_path, "plan") == []
    found = list_result_files(tmp_path, "score")
    assert len(reads) == 100
    assert found[0].load() == SCORE and len(reads) == 101


def test_the_latest_files_of_a_very_large_folder_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(result_sources, "_MOST_FILES", 2)
    for age, name in enumerate(["z.json", "m.json", "a.json"]):
        (tmp_path / name).write_text(json.dumps(SCORE))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert [one.key for one in list_result_files(tmp_path, "score")] == ["z.json", "m.json"]


def test_file_that_vanishes_is_one_clear_line_without_its_folder(tmp_path):
    (tmp_path / "score.json").write_text(json.dumps(SCORE))
    (found,) = list_result_files(tmp_path, "score")
    (tmp_path / "score.json").unlink()
    with pytest.raises(MissingError, match="was changed or removed") as caught:
        found.load()
    assert str(tmp_path) not in str(caught.value)


def test_unknown_keys_are_refused(tmp_path):
    assert choose_source([], "") is None
    with pytest.raises(MissingError, match="choose one"):
        choose_source([], "x")
