"""The store: every observation from the moment it is made, and what was fitted to it.

    with open_store() as store:
        store.add_observation(observation)        # safe on the disk when it returns
        store.save_fit(key, "subtractive", fitted)
        profile = store.find_profile("NVIDIA H200")

Takes and gives records. It is a SQLite file by default, or a PostgreSQL database for a team.
Several processes may write at once, and whatever kills one of them, nothing that was added is lost.
Profiles that ship with the package answer where the store knows none. Profile files are in
``files.py``; their verbs are here too, since people look for them beside the store.
"""

from joulecast.files import read_network, read_profile, write_network, write_profile
from joulecast.store.database import find_url
from joulecast.store.store import Store, open_store, profile_key
from joulecast.store.summaries import ProfileSummary

__all__ = [
    "ProfileSummary",
    "Store",
    "find_url",
    "open_store",
    "profile_key",
    "read_network",
    "read_profile",
    "write_network",
    "write_profile",
]
