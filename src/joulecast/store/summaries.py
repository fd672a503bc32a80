"""Summarise profiles, and find those of a device by name.

A device is found by its name, by a profile's key, by the start of its name, or by the start of a
key: the first of these that matches anything counts. Of several profiles of one device, the one
with the strongest provenance comes first, then the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from joulecast.errors import InputError, MissingError
from joulecast.records import PROVENANCES
from joulecast.records.codec import Record

MIN_KEY_LENGTH = 4


@dataclass(frozen=True)
class ProfileSummary(Record):
    """A line of ``joulecast profiles list``.

    Attributes:
        device: The device's name.
        estimators: Names of the fitted estimators.
        changed_at_s: Time of the last change, in seconds since 1970.
        shipped: It ships with the package and is not in the store.
    """

    key: str
    device: str
    power_mode: str
    runtime: str
    covers: str
    provenance: str
    observation_count: int
    estimators: tuple[str, ...]
    changed_at_s: float
    shipped: bool = False

    def __str__(self) -> str:
        parts = (self.device, self.power_mode, self.runtime, self.covers, self.provenance)
        return f"{self.key} ({', '.join(part for part in parts if part)})"


def match_profiles(
    known: Sequence[ProfileSummary], device_name: str, prefixes: Mapping[str, str]
) -> list[ProfileSummary]:
    """Return the profiles of one device, the best one first.

    Shipped profiles are returned only if no profile of the store matches.

    Args:
        known: All profiles.
        device_name: The device's name or the profile's key, or the start of either.
        prefixes: Required starts of fields (``{"runtime": "torch"}``).

    Raises:
        InputError: Several devices match.
        MissingError: None matches.
    """
    if not device_name:
        raise InputError("no device is named: give its name, or the start of it")
    candidates = [one for one in known if _has_prefixes(one, prefixes)]
    own = _match([one for one in candidates if not one.shipped], device_name)
    matches = own or _match([one for one in candidates if one.shipped], device_name)
    if len({one.device for one in matches}) > 1:
        raise InputError(
            f"{len(matches)} profiles match {device_name!r}: {'; '.join(map(str, matches))}; "
            "give the full name of a device, or a profile's key"
        )
    if not matches:
        raise MissingError(_explain_missing(known, device_name, prefixes))
    return sorted(matches, key=lambda one: (PROVENANCES.index(one.provenance), -one.changed_at_s))


def _has_prefixes(summary: ProfileSummary, prefixes: Mapping[str, str]) -> bool:
    return all(getattr(summary, field).startswith(start) for field, start in prefixes.items())


def _match(summaries: Sequence[ProfileSummary], device_name: str) -> list[ProfileSummary]:
    name = device_name.lower()
    criteria: list[Callable[[ProfileSummary], bool]] = [
        lambda one: one.device.lower() == name,
        lambda one: one.key == name,
        lambda one: one.device.lower().startswith(name),
        lambda one: len(name) >= MIN_KEY_LENGTH and one.key.startswith(name),
    ]
    for is_match in criteria:
        matches = [one for one in summaries if is_match(one)]
        if matches:
            return matches
    return []


def _explain_missing(
    known: Sequence[ProfileSummary], device_name: str, prefixes: Mapping[str, str]
) -> str:
    names = sorted({one.device + (" (shipped)" if one.shipped else "") for one in known})
    listed = f"known devices: {', '.join(names)}" if names else "there are no profiles yet"
    details = "".join(f", {field} {start}" for field, start in prefixes.items())
    return (
        f"there is no profile of {device_name!r}{details} ({listed}): create one with "
        "`joulecast profile NET --on cpu` or `--on cuda:0`"
    )
