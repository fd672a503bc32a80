"""Which profile a person means: a device's name, a profile's key or file, or this machine."""

from __future__ import annotations

from joulecast.devices import detect_device
from joulecast.errors import MissingError
from joulecast.files import read_profile
from joulecast.records import Profile


def resolve_profile(device: str = "", store: str | None = None) -> Profile:
    """The profile behind a name.

    Args:
        device: A device's name or a profile's key, or how one begins; a profile's ``.json`` file;
            this machine's processor by default.
        store: Where the store is, if not where it usually is.

    Raises:
        InputError: Several profiles match.
        FileError: The file is damaged or newer.
        MissingError: There is no such profile.
    """
    if device.endswith(".json"):
        return read_profile(device)
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        if device:
            return opened.find_profile(device)
        name = detect_device("cpu").name
        if not any(one.device == name for one in opened.profiles()):
            raise MissingError(
                f"this machine ({name}) has no profile yet: make one with `joulecast profile NET "
                "--on cpu`, or name a device of `joulecast profiles list` with --device"
            )
        return opened.find_profile(name)
