"""Profiles that a device starts from: which are found, and which are refused."""

from dataclasses import replace

import pytest

import joulecast
from joulecast.features.transfer_sources import make_estimator
from joulecast.store import write_profile
from joulecast.system.errors import InputError, MissingError

OPTIONS = {"batch": 8, "points": 10}
NET = "lenet5:4,8,16,16"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store with profiles of two simulated devices."""
    place = str(tmp_path_factory.mktemp("store") / "store.sqlite")
    for seed in (7, 8):
        joulecast.profile(NET, on=f"simulated:{seed}", store=place, **OPTIONS)
    return place


@pytest.fixture
def own(place):
    return joulecast.load_profile("simulated-8", store=place)


def make(place, own, *names, estimator="additive"):
    return make_estimator(estimator, names, own, place)


def test_profiles_are_found_by_name_key_and_file(place, own, tmp_path):
    profile = joulecast.load_profile("simulated-7", store=place)
    file = tmp_path / "seven.json"
    write_profile(profile, file)
    by_name, by_key, by_file = (
        make(place, own, one).sources for one in ("simulated-7", profile.key[:8], str(file))
    )
    assert [one.name for one in by_name] == ["simulated-7"] and by_name == by_key == by_file
    # Twice the same one is one source.
    assert make(place, own, "simulated-7", profile.key).sources == by_name


def test_device_is_no_source_of_itself(place, own):
    with pytest.raises(InputError, match="'simulated-8' is the profile of this device itself"):
        make(place, own, "simulated-8")


def test_frameworks_are_not_mixed(place, own):
    with pytest.raises(InputError, match=r"'nvidia-h200' was profiled with torch.*not mixed"):
        make(place, own, "nvidia-h200")
    elsewhere = replace(own, runtime="mnn-3.2")
    with pytest.raises(InputError, match="profiled with simulated, this device with mnn"):
        make(place, elsewhere, "simulated-7")


def test_another_version_of_a_framework_is_the_same_framework(place, own):
    here = replace(own, runtime="torch-1.0")
    (source,) = make(place, here, "nvidia-h200").sources
    assert source.name == "nvidia-h200"


def test_unknown_names_and_estimators_are_refused(place, own):
    with pytest.raises(MissingError, match="there is no profile of 'nothing'"):
        make(place, own, "nothing")
    with pytest.raises(InputError, match="flops cannot start from other devices"):
        make(place, own, "simulated-7", estimator="flops")
    assert make(place, own, estimator="flops").name == "flops"


def test_profile_keeps_its_sources(place):
    """Also where the command is repeated without them, and where the fit is extended."""
    options = {"on": "simulated:9", "store": place, "batch": 8}
    joulecast.profile(NET, from_="simulated-7", points=8, **options)
    profile = joulecast.profile(NET, points=12, **options)
    estimate = joulecast.estimate(NET, device="simulated-9", store=place, batch=8)
    assert any(note.startswith("Transferred from simulated-7:") for note in estimate.notes)
    (source,) = make(place, profile).sources
    assert source.name == "simulated-7"


def test_atlas_may_start_from_others(place, monkeypatch):
    monkeypatch.setattr("joulecast.campaign.atlas_campaign._NETWORKS", {True: 3, False: 3})
    options = {"on": "simulated:6", "store": place, "atlas": True, "points": 8}
    joulecast.profile(from_=["simulated-7", "simulated-8"], **options)
    estimate = joulecast.estimate(NET, device="simulated-6", store=place, batch=8)
    assert any("simulated-7 and simulated-8" in note for note in estimate.notes)
    with pytest.raises(InputError, match="itself"):
        joulecast.profile(from_="simulated-6", **options)
    # Without them, the next fit keeps them.
    joulecast.profile(**{**options, "points": 9})
    estimate = joulecast.estimate(NET, device="simulated-6", store=place, batch=8)
    assert any("simulated-7 and simulated-8" in note for note in estimate.notes)
