"""Find the profile of a device: by the device's name, a profile's key or file, or this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from joulecast.devices import detect_device
from joulecast.errors import JoulecastError, MissingError
from joulecast.files import read_profile
from joulecast.records import Profile

if TYPE_CHECKING:
    from joulecast.store import ProfileSummary

SHORT_KEY = 8
"""Digits of a profile's key that messages show."""


def load_profile(
    device: str = "",
    *,
    store: str | None = None,
    on_choice: Callable[[str], None] | None = None,
) -> Profile:
    """Return the profile of a device.

    Args:
        device: A device's name, a profile's key or the beginning of either, or a profile's
            ``.json`` file; this machine's processor by default.
        store: Path or URL of the store, if not the usual one.
        on_choice: Called with a sentence on which profile is used where several match.

    Raises:
        InputError: Several devices match.
        FileError: The file is damaged or newer than this version of Joulecast.
        MissingError: There is no such profile.
    """
    if device.endswith(".json"):
        return read_profile(device)
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        name = device or detect_device("cpu").name
        if not device and not any(one.device == name for one in opened.list_profiles()):
            raise MissingError(
                f"this machine ({name}) has no profile yet: make one with `joulecast profile NET "
                "--on cpu`, or name a device of `joulecast profiles list` with --device"
            )
        matches = opened.list_matches(name)
        if on_choice is not None and len(matches) > 1:
            on_choice(_describe_choice(name, matches))
        return opened.load_profile(matches[0].key)


def find_profile(device: str | Profile, store: str | None = None) -> Profile:
    """Return a profile that is given as such or by the name of its device."""
    return load_profile(device, store=store) if isinstance(device, str) else device


def find_profiles(
    devices: Sequence[str | Profile],
    store: str | None = None,
    on_choice: Callable[[str], None] | None = None,
) -> dict[str, Profile | str]:
    """Return the profile of every device, or the reason why there is none.

    Raises:
        JoulecastError: No device has a profile.
    """
    found: dict[str, Profile | str] = {}
    errors: list[JoulecastError] = []
    for device in devices or ("",):
        if isinstance(device, Profile):
            found[device.key] = device
            continue
        try:
            found[device] = load_profile(device, store=store, on_choice=on_choice)
        except JoulecastError as error:
            errors.append(error)
            found[device] = str(error)
    if len(errors) == len(found):
        raise errors[0]
    return found


def identify_profile(profile: Profile, store: str | None = None) -> str:
    """Return what identifies a profile: the name of its device if unique, else its short key."""
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        is_unique = len(opened.list_matches(profile.device.name)) == 1
    return profile.device.name if is_unique else profile.key[:SHORT_KEY]


def _describe_choice(name: str, matches: Sequence[ProfileSummary]) -> str:
    best, count = matches[0], len(matches) - 1
    facts = (best.device, best.power_mode, best.runtime, best.covers, best.provenance)
    others = "1 other matches" if count == 1 else f"{count} others match"
    return (
        f"Using profile {best.key[:SHORT_KEY]} ({', '.join(filter(None, facts))}); {others} "
        f"{name!r}: choose one of `joulecast profiles list` with --device KEY."
    )
