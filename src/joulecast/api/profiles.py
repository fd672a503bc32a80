"""Which profile a person means: a device's name, a profile's key or file, or this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from joulecast.devices import detect_device
from joulecast.errors import MissingError
from joulecast.files import read_profile
from joulecast.records import Profile

if TYPE_CHECKING:
    from joulecast.store import ProfileSummary

SHORT_KEY = 8
"""Digits of a profile's key that people see."""


def resolve_profile(
    device: str = "", store: str | None = None, on_choice: Callable[[str], None] | None = None
) -> Profile:
    """The profile behind a name.

    Args:
        device: A device's name or a profile's key, or how one begins; a profile's ``.json`` file;
            this machine's processor by default.
        store: Where the store is, if not where it usually is.
        on_choice: Is told in a sentence which profile was taken where several match.

    Raises:
        InputError: Several devices match.
        FileError: The file is damaged or newer.
        MissingError: There is no such profile.
    """
    if device.endswith(".json"):
        return read_profile(device)
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        name = device or detect_device("cpu").name
        if not device and not any(one.device == name for one in opened.profiles()):
            raise MissingError(
                f"this machine ({name}) has no profile yet: make one with `joulecast profile NET "
                "--on cpu`, or name a device of `joulecast profiles list` with --device"
            )
        matches = opened.list_matches(name)
        if on_choice is not None and len(matches) > 1:
            on_choice(_say_choice(name, matches))
        return opened.profile(matches[0].key)


def name_profile(profile: Profile, store: str | None = None) -> str:
    """What names a profile and no other: its device's name, or its key where others share that."""
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        alone = len(opened.list_matches(profile.device.name)) == 1
    return profile.device.name if alone else profile.key[:SHORT_KEY]


def _say_choice(name: str, matches: Sequence[ProfileSummary]) -> str:
    best, count = matches[0], len(matches) - 1
    facts = (best.device, best.power_mode, best.runtime, best.covers, best.provenance)
    others = "1 other matches" if count == 1 else f"{count} others match"
    return (
        f"Taken is the profile {best.key[:SHORT_KEY]} ({', '.join(filter(None, facts))}); {others} "
        f"{name!r}: see `joulecast profiles list` and name one with --device KEY."
    )
