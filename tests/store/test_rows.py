"""Rows that were changed after they were written are refused, never read as something else."""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from benchmarks.robustness.hostile_inputs import damage_bytes
from joulecast.families import make_family
from joulecast.records import Device, Observation, Setup, Trial
from joulecast.store import open_store
from joulecast.system.errors import InputError, JoulecastError, StoreError

SEEN = Observation(Trial(make_family("lenet5"), Setup()), 1.5, device=Device("board"), covers="cpu")
FIT = {"rows": {"a": 0.25}, "version": 1}


@pytest.fixture
def no_profiles(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    return folder


@pytest.fixture
def place(tmp_path, no_profiles):
    """Return the path of a store with three observations and a fit."""
    path = tmp_path / "store.sqlite"
    with open_store(path, shipped=no_profiles) as store:
        for batch in (1, 2, 3):
            trial = replace(SEEN.trial, setup=Setup(batch=batch))
            store.add_observation(replace(SEEN, trial=trial, energy_j=1.0 / batch))
        store.save_fit(store.list_profiles()[0].key, "flops", FIT)
    return path


def read_all(place, no_profiles):
    with open_store(place, create=False, wait_s=0.2, shipped=no_profiles) as store:
        profiles = [store.load_profile(one.key) for one in store.list_profiles()]
        return [profile.to_dict() for profile in profiles]


def execute(place, statement):
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE observations SET payload = replace(payload, '0.5,', '0.6,')", "observation 2"),
        ("UPDATE observations SET payload = replace(payload, '\"batch\":3', '\"batch\":4')",
         "observation 3"),
        ("UPDATE observations SET payload = x'00ff'", "observation 1"),
        ("UPDATE observations SET digest = 'x'", "observation 1"),
        ("UPDATE fits SET payload = replace(payload, '0.25', '0.26')", "the fit of flops"),
        ("UPDATE fits SET payload = x'7b'", "the fit of flops"),
        ("UPDATE profiles SET covers = 'gpu'", "profile "),
        ("UPDATE profiles SET device = replace(device, 'board', 'brand')", "profile "),
    ],
)  # fmt: skip
def test_changed_row_is_damage(place, no_profiles, statement, what):
    execute(place, statement)
    with pytest.raises(StoreError, match=f"{what}.*is damaged") as caught:
        read_all(place, no_profiles)
    assert "\n" not in str(caught.value)


def test_text_that_cannot_be_decoded_is_damage_and_not_tried_again(place, no_profiles, monkeypatch):
    execute(place, "UPDATE observations SET payload = CAST(x'ff' AS TEXT)")
    monkeypatch.setattr("joulecast.store.database.time.sleep", pytest.fail)
    with pytest.raises(StoreError, match="the database is damaged; move it away"):
        read_all(place, no_profiles)


def test_damaged_file_never_reads_as_something_else(place, no_profiles):
    before, content = read_all(place, no_profiles), place.read_bytes()
    rng = random.Random(14)
    for _ in range(60):
        for path in place.parent.glob("store.sqlite*"):
            path.unlink()
        place.write_bytes(damage_bytes(content, rng))
        try:
            found = read_all(place, no_profiles)
        except JoulecastError as error:
            assert "\n" not in str(error)
        else:
            # An older or smaller state is possible: SQLite itself has no checksums of its pages.
            assert all(_is_part(one, before) for one in found)


def _is_part(profile, known):
    """Return whether a profile has only observations and fits of one that is known."""
    (whole,) = known
    rest = {key: value for key, value in profile.items() if key not in ("observations", "fits")}
    return (
        all(whole[key] == value for key, value in rest.items())
        and all(_bare(one) in map(_bare, whole["observations"]) for one in profile["observations"])
        and all(whole["fits"].get(name) == fit for name, fit in profile["fits"].items())
    )


def _bare(observation):
    """Return an observation without names of layers, which are labels."""
    trial = Trial.from_dict(observation["trial"])
    return {**observation, "trial": trial.key}


def test_fit_of_an_earlier_version_has_no_checksum(place, no_profiles):
    execute(place, """UPDATE fits SET payload = '{"rows": {}, "version": 1}'""")
    assert read_all(place, no_profiles)[0]["fits"] == {"flops": {"rows": {}, "version": 1}}


@pytest.mark.parametrize("value", [float("nan"), -1.0, 1e300])
def test_observation_that_could_not_be_read_again_is_not_stored(place, no_profiles, value):
    wrong = replace(SEEN)
    object.__setattr__(wrong, "energy_j", value)
    with open_store(place, shipped=no_profiles) as store:
        with pytest.raises(InputError, match="energy_j"):
            store.add_observation(wrong)
        assert len(store.load_observations(store.list_profiles()[0].key)) == 3
