"""Properties of any store: profiles of every kind survive it."""

import json
import os
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import record_strategies as draw
from joulecast.store import open_store
from joulecast.testing.stores import SHARED, StoreContract


def open_bare(place=None, **options):
    """Open a store without shipped profiles."""
    return open_store(place, shipped=Path(os.devnull) / "nothing", **options)


class StoreProperties(StoreContract):
    """The contract of stores, and what holds for every profile that can be drawn."""

    @SHARED
    @given(profile=draw.profiles())
    def test_imported_profile_is_returned_equal(self, store, profile):
        assert store.import_profile(profile) == len(profile.observations)
        back = store.load_profile(profile.key)
        assert back == profile
        # Names take no part in equality, but are stored.
        assert _json(back) == _json(profile)
        store.remove_profile(profile.key)

    @SHARED
    @given(profile=draw.profiles(), cut=st.integers(0, 3))
    def test_importing_twice_has_no_effect(self, store, profile, cut):
        part = replace(profile, observations=profile.observations[:cut])
        assert store.import_profile(part) == len(part.observations)
        assert store.import_profile(profile) == len(profile.observations[cut:])
        assert store.import_profile(profile) == 0
        assert store.load_profile(profile.key) == profile
        store.remove_profile(profile.key)


def _json(profile):
    return json.loads(json.dumps(profile.to_dict()))
