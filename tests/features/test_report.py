"""``joulecast.report`` takes profiles, results and their files."""

import json

import pytest

import joulecast
from joulecast.errors import FileError, InputError, MissingError
from joulecast.store import open_store, write_profile
from joulecast.testing.stores import make_observation, make_profile
from report_examples import PRUNING, SCORE, make_evaluation, make_plan


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (make_evaluation(), "evaluation"),
        (make_plan(), "plan"),
        (SCORE, "score"),
        ((SCORE, SCORE), "score"),
        (PRUNING, "pruning"),
        (make_profile(make_observation()), "profile"),
    ],
)
def test_results_are_reported_as_they_are(what, kind):
    assert joulecast.report(what).kind == kind


def test_files_are_recognised_by_their_content(tmp_path):
    result, profile = tmp_path / "result.json", tmp_path / "profile.json"
    result.write_text(json.dumps(PRUNING))
    write_profile(make_profile(make_observation()), profile)
    out = tmp_path / "page.html"
    assert joulecast.report(result, out=out).kind == "pruning"
    assert out.read_text().startswith("<!doctype html>")
    assert joulecast.report(str(profile)).kind == "profile"


def test_device_with_a_profile_is_reported_by_name(tmp_path):
    place = str(tmp_path / "store.sqlite")
    profile = make_profile(make_observation())
    with open_store(place) as store:
        store.import_profile(profile)
    found = joulecast.report(profile.device.name, store=place)
    assert found.title == f"Profile of {profile.device.name}"


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        ("", InputError, "nothing to report"),
        ("none.json", FileError, "there is no file"),
        ("no such device", MissingError, "no profile"),
        (3, InputError, "a int cannot be reported"),
        ([1], InputError, "a list cannot be reported"),
        ({}, FileError, "not a result"),
    ],
)
def test_what_cannot_be_reported_is_refused(what, error, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        joulecast.report(what, store=str(tmp_path / "none"))


def test_network_file_is_not_a_result(tmp_path):
    path = tmp_path / "net.json"
    path.write_text('{"format": "joulecast-network", "version": 1, "network": {}}')
    with pytest.raises(FileError, match="not a joulecast-profile file"):
        joulecast.report(path)


def test_profile_has_the_curves_of_its_layers(tmp_path):
    place = str(tmp_path / "store.sqlite")
    options = {"on": "simulated:3", "batch": 8, "points": 14, "store": place}
    profile = joulecast.profile("lenet5:4,8,16,16", **options)
    found = joulecast.report(profile)
    assert "Curves of layers" in [one.heading for one in found.sections]
    assert "(simulated)" in found.plots["layer-1"].heading
