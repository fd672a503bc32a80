"""Test the contract of stores, for any database.

Inherit ``StoreContract`` and define a fixture ``store``: an empty store without shipped profiles.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulecast.families import make_family
from joulecast.records import Device, Execution, Network, Observation, Profile, Setup, Trial
from joulecast.store import Store, profile_key
from joulecast.system.errors import InputError, MissingError

# Every test removes what it adds, so that all examples can use one store.
SHARED = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)


def make_observation(number: int = 0, board: str = "board", **changes: Any) -> Observation:
    """Return an observation; the number decides its batch and its time."""
    trial = Trial(make_family("lenet5"), Setup(batch=number + 1), Execution(steps=10))
    fields: dict[str, Any] = {
        "energy_j": 1 / (number + 3),
        "duration_s": 0.1 * (number + 1),
        "run": "run 1",
        "device": Device(board, power_mode="10 W"),
        "runtime": "torch-2.13.0",
        "meter": "rapl",
        "covers": "cpu",
        "taken_at_s": 1.7e9 + number,
    }
    return Observation(trial, **{**fields, **changes})


def make_profile(*observations: Observation, **fits: Any) -> Profile:
    """Return the profile of observations of one device."""
    one = observations[0]
    return Profile(one.device, one.runtime, one.covers, one.provenance, observations, fits)


def add_all(store: Store, *observations: Observation) -> None:
    """Add observations one by one."""
    for one in observations:
        store.add_observation(one)


class StoreContract:
    """Tests of any store; a subclass has a fixture ``store``."""

    @SHARED
    @given(numbers=st.lists(st.integers(0, 50), max_size=8))
    def test_observations_keep_their_order(self, store: Store, numbers: list[int]) -> None:
        made = [make_observation(number) for number in numbers]
        add_all(store, *made)
        key = profile_key(make_observation())
        assert store.load_observations(key) == tuple(dict.fromkeys(made))
        if made:
            store.remove_profile(key)

    def test_repeats_time_probes_and_idling_are_in_the_same_profile(self, store: Store) -> None:
        first = make_observation()
        again, probe = replace(first, energy_j=1.5), replace(first, energy_j=None)
        idle = replace(make_observation(1), trial=Trial(Network(), Setup()))
        add_all(store, first, again, probe, idle)
        assert store.load_profile(profile_key(first)).observations == (first, again, probe, idle)

    @pytest.mark.parametrize(
        "change",
        [
            {"device": Device("board", power_mode="15 W")},
            {"runtime": "torch-2.12.0"},
            {"covers": "board"},
            {"provenance": "modelled"},
        ],
    )
    def test_power_modes_runtimes_and_meters_have_their_own_profiles(
        self, store: Store, change: dict[str, Any]
    ) -> None:
        one, other = make_observation(), make_observation(**change)
        add_all(store, one, other)
        assert store.load_observations(profile_key(one)) == (one,)
        assert store.load_observations(profile_key(other)) == (other,)
        assert len(store.list_profiles()) == 2

    def test_import_of_mixed_observations_is_refused(self, store: Store) -> None:
        good, bad = make_observation(), make_observation(1, board="another")
        with pytest.raises(InputError, match="another"):
            store.import_profile(make_profile(good, bad))
        assert store.list_profiles() == ()

    @pytest.mark.parametrize("number", [math.nan, math.inf])
    def test_numbers_that_are_not_finite_are_refused(self, store: Store, number: float) -> None:
        kept = make_observation()
        store.add_observation(kept)
        key = profile_key(kept)
        with pytest.raises(InputError, match="finite"):
            store.save_fit(key, "flops", {"slope": number})
        assert store.load_profile(key) == make_profile(kept)

    @pytest.mark.parametrize("change", [{"run": "a\0b"}, {"device": Device("a\0b")}])
    def test_names_that_some_databases_cannot_store_are_refused(
        self, store: Store, change: dict[str, Any]
    ) -> None:
        one = make_observation(**change)
        with pytest.raises(InputError, match="NUL"):
            store.add_observation(one)
        if "device" in change:
            with pytest.raises(InputError, match="NUL"):
                store.check_writable(make_profile(one))
        assert store.list_profiles() == ()

    @pytest.mark.parametrize("key", ["0123", "a\0b", "\udcff", "", "x" * 10_000])
    def test_missing_profile_is_named(self, store: Store, key: str) -> None:
        assert store.load_observations(key) == ()
        assert store.load_fit(key, "flops") is None
        for verb in (store.load_profile, store.remove_profile):
            with pytest.raises(MissingError, match="no profile"):
                verb(key)
        if key == "0123":
            with pytest.raises(MissingError, match=key):
                store.find_profile(key)
            with pytest.raises(MissingError, match=key):
                store.save_fit(key, "flops", {})
        assert store.list_profiles() == ()

    def test_claimed_trial_cannot_be_claimed_again(self, store: Store) -> None:
        one, other = make_observation(), make_observation(1)
        with store.claim_trial(one) as first, store.claim_trial(other) as another:
            assert first == another == ()
            with store.claim_trial(one) as second:
                assert second is None or store.place == ":memory:"
            store.add_observation(one)
        with store.claim_trial(one) as again:
            assert again == (one,)

    def test_writing_is_rehearsed_without_a_trace(self, store: Store) -> None:
        one = make_observation()
        store.check_writable(make_profile(one))
        assert store.list_profiles() == ()
        store.add_observation(one)
        store.check_writable(make_profile(one))
        assert store.load_observations(profile_key(one)) == (one,)

    def test_latest_fit_is_returned(self, store: Store) -> None:
        seen = make_observation()
        store.add_observation(seen)
        for slope in (1.0, 2.0):
            store.save_fit(profile_key(seen), "flops", {"slope": slope})
        store.save_fit(profile_key(seen), "forest", {})
        assert store.load_profile(profile_key(seen)).fits == {"flops": {"slope": 2.0}, "forest": {}}

    def test_imported_fit_does_not_replace_one_of_more_observations(self, store: Store) -> None:
        small = make_profile(make_observation(0), flops={"from": "import"})
        add_all(store, make_observation(1), make_observation(2))
        store.save_fit(small.key, "flops", {"from": "here"})
        store.import_profile(small)
        assert store.load_profile(small.key).fits == {"flops": {"from": "here"}}
        large = make_profile(*map(make_observation, range(3)), flops={"from": "import"})
        store.import_profile(large)
        assert store.load_profile(small.key).fits == {"flops": {"from": "import"}}

    def test_summaries(self, store: Store) -> None:
        seen = [make_observation(number) for number in range(3)]
        add_all(store, *seen, make_observation(7, board="phone"))
        store.save_fit(profile_key(seen[0]), "subtractive", {})
        store.save_fit(profile_key(seen[0]), "flops", {})
        board, _ = sorted(store.list_profiles(), key=lambda one: one.device)
        assert board.key == profile_key(seen[0])
        assert (board.observation_count, board.estimators) == (3, ("flops", "subtractive"))
        assert (board.power_mode, board.runtime) == ("10 W", "torch-2.13.0")
        assert (board.covers, board.provenance, board.shipped) == ("cpu", "measured", False)
        assert board.changed_at_s >= seen[-1].taken_at_s

    def test_removing_a_profile_leaves_the_others(self, store: Store) -> None:
        board, phone = make_observation(), make_observation(board="phone")
        for one in (board, phone):
            store.add_observation(one)
            store.save_fit(profile_key(one), "flops", {})
        store.remove_profile(profile_key(board))
        assert store.load_observations(profile_key(board)) == ()
        assert [one.device for one in store.list_profiles()] == ["phone"]
        assert store.load_profile(profile_key(phone)).fits == {"flops": {}}

    @pytest.mark.parametrize("name", ["NVIDIA H200", "nvidia h200", "NVIDIA", "n"])
    def test_device_is_found_by_the_start_of_its_name(self, store: Store, name: str) -> None:
        wanted = make_observation(board="NVIDIA H200")
        add_all(store, wanted, make_observation(board="board"))
        for text in (name, profile_key(wanted), profile_key(wanted)[:8]):
            assert store.find_profile(text).device.name == "NVIDIA H200"

    def test_full_name_is_preferred_and_error_for_several_lists_them(self, store: Store) -> None:
        both = [make_observation(board=name) for name in ("H200", "H200 NVL")]
        add_all(store, *both)
        assert store.find_profile("H200").device.name == "H200"
        with pytest.raises(InputError, match="2 profiles match 'H2'") as caught:
            store.find_profile("H2")
        assert all(profile_key(seen) in str(caught.value) for seen in both)
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match="named"):
            store.find_profile("")

    def test_best_of_several_profiles_is_found(self, store: Store) -> None:
        modelled = make_observation(9, provenance="modelled", covers="board", runtime="mnn-3.6")
        # Later than the store's clock, so that the time of the observation decides.
        newer = make_observation(8, runtime="torch-2.12.0", taken_at_s=9e9)
        older = make_observation(7)
        add_all(store, modelled, newer, older)
        assert store.find_profile("board").observations == (newer,)
        found = [one.key for one in store.list_matches("boa")]
        assert found == [profile_key(seen) for seen in (newer, older, modelled)]
        assert store.find_profile(profile_key(modelled)[:8]).observations == (modelled,)
        with pytest.raises(MissingError, match=r"'phone'.*known devices: board"):
            store.find_profile("phone")
