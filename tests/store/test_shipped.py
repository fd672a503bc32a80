"""Shipped profiles: found in a folder, summarised unparsed, and joined with a user's own."""

import pytest

from joulecast.records import LazyObservations
from joulecast.store.files import write_profile
from joulecast.store.profiles import (
    SHIPPED,
    ShippedProfiles,
    find_shipped_folder,
    join_observations,
    summarise_shipped,
)
from joulecast.system.errors import FileError, StoreError
from joulecast.testing.stores import make_observation, make_profile

OWN = (make_observation(1, run="run 2"), make_observation(2, run="run 2"))


def test_variable_names_another_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("JOULECAST_PROFILES", raising=False)
    assert find_shipped_folder() == SHIPPED
    monkeypatch.setenv("JOULECAST_PROFILES", str(tmp_path))
    assert find_shipped_folder() == tmp_path
    monkeypatch.setenv("JOULECAST_PROFILES", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="not a folder: create it"):
        find_shipped_folder()


def test_profiles_of_a_folder_are_read_and_marked(tmp_path):
    profile = make_profile(make_observation(3), flops={}, forest={})
    write_profile(profile, tmp_path / "board.json")
    ((key, found),) = ShippedProfiles(tmp_path).by_key.items()
    assert (key, found) == (profile.key, profile) and found.shipped
    summary = summarise_shipped(found)
    assert (summary.key, summary.device, summary.shipped) == (key, "board", True)
    assert (summary.observation_count, summary.estimators) == (1, ("flops", "forest"))
    assert summary.changed_at_s == make_observation(3).taken_at_s
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FileError, match=r"bad\.json"):
        ShippedProfiles(tmp_path).by_key  # noqa: B018


def test_a_file_is_read_again_only_if_it_changed(tmp_path):
    profile = make_profile(make_observation(3))
    write_profile(profile, tmp_path / "board.json")
    first, again = (ShippedProfiles(tmp_path).by_key[profile.key] for _ in range(2))
    assert again is first
    write_profile(make_profile(make_observation(3), make_observation(4)), tmp_path / "board.json")
    changed = ShippedProfiles(tmp_path).by_key[profile.key]
    assert len(changed.observations) == 2


def test_observations_of_other_runs_are_joined_unparsed():
    def parse():
        raise AssertionError("parsed")

    shipped = (make_observation(), make_observation(5))
    joined = join_observations(shipped, LazyObservations(2, parse), {"run 2"})
    assert len(joined) == 4
    assert join_observations(shipped, OWN, {"run 2"}) == (*shipped, *OWN)


def test_observations_of_the_same_run_are_joined_once():
    shipped = (make_observation(), OWN[0])
    joined = join_observations(shipped, OWN, {"run 2"})
    assert len(joined) == 3
    assert joined == (*shipped, OWN[1])
