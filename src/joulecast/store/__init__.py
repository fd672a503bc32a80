"""Store observations and what was fitted to them, in SQLite or PostgreSQL.

    with open_store() as store:
        store.add_observation(observation)        # on disk when it returns
        store.save_fit(key, "subtractive", fitted)
        profile = store.find_profile("NVIDIA H200")

The store is a SQLite file by default, or a PostgreSQL database for a team. Several processes may
write at once; if one of them is killed, nothing that was added is lost. Profiles that ship with the
package are found as well. The functions of ``files.py`` for profile files are exported here too.
"""

from typing import TYPE_CHECKING, Any

from joulecast.store.files import read_network, read_profile, write_network, write_profile
from joulecast.store.profiles import ProfileSummary, check_place, open_store, profile_key

if TYPE_CHECKING:
    from joulecast.store.store import Store


def __getattr__(name: str) -> Any:
    """Import the class ``Store``, and with it the database's library, when it is first used."""
    if name != "Store":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from joulecast.store.store import Store

    return Store
