"""A profile is found for the very device that is named, or not at all."""

from dataclasses import replace

import pytest

from joulecast.api.profiles import find_device, load_profile
from joulecast.errors import JoulecastError
from joulecast.records import Device, Profile
from joulecast.store import open_store

GPU = Device("nvidia-h20", "NVIDIA H20", 2**30, "1.0", "limit 500W")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return the place of a store with two profiles; the GPU here is the first one's."""
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as opened:
        for device in (GPU, replace(GPU, name="nvidia-h20x")):
            opened.import_profile(Profile(device, "torch-2.11.0", "gpu", "measured"))
    monkeypatch.setattr("joulecast.api.profiles.detect_device", lambda on: GPU)
    return place


def detect(monkeypatch, **changes) -> None:
    here = replace(GPU, **changes)
    monkeypatch.setattr("joulecast.api.profiles.detect_device", lambda on: here)


def test_the_profile_has_the_name_of_the_device(store):
    assert load_profile(on="cuda:0", store=store).device == GPU


def test_a_device_whose_name_only_begins_alike_is_another_one(store, monkeypatch):
    detect(monkeypatch, name="nvidia-h")
    with pytest.raises(JoulecastError, match=r"cuda:0 of this machine \(nvidia-h\) has no profile"):
        load_profile(on="cuda:0", store=store)
    assert load_profile("nvidia-h20x", store=store).device.name == "nvidia-h20x"


def test_a_shipped_profile_of_another_device_is_not_used(tmp_path, monkeypatch):
    detect(monkeypatch, name="nvidia-h2")
    with pytest.raises(JoulecastError, match="joulecast profile NET --on cuda:0"):
        load_profile(on="cuda:0", store=str(tmp_path / "none.sqlite"))
    detect(monkeypatch, name="nvidia-h200", power_mode="limit 700W", driver="2.0")
    assert load_profile(on="cuda:0", store=str(tmp_path / "none.sqlite")).shipped


def test_another_power_mode_is_another_device(store, monkeypatch):
    detect(monkeypatch, power_mode="limit 300W")
    with pytest.raises(JoulecastError, match="no profile in this power mode, only in limit 500W"):
        load_profile(on="cuda:0", store=store)
    detect(monkeypatch, power_mode="")
    assert load_profile(on="cuda:0", store=store).device == GPU


def test_a_simulated_device_is_found_by_its_seed():
    device, framework = find_device("simulated:7")
    assert (device.name, framework) == ("simulated-7", "simulated")


def test_profiles_of_other_frameworks_are_not_used(store, monkeypatch):
    # Made last: without the framework it would be the better match of both.
    with open_store(store) as opened:
        opened.import_profile(Profile(GPU, "mnn-3.6.1", "gpu", "measured"))
    assert load_profile(on="mnn:cpu", store=store).runtime == "mnn-3.6.1"
    assert load_profile(on="cuda:0", store=store).runtime == "torch-2.11.0"
    detect(monkeypatch, name="nvidia-h20x")
    with pytest.raises(JoulecastError, match="joulecast profile NET --on mnn:cpu"):
        load_profile(on="mnn:cpu", store=store)
