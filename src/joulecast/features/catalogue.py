"""List the devices of the catalogue, and which of them have a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.catalogue import (
    DATASHEET,
    DataSheet,
    find_data_sheet,
    is_named,
    list_data_sheets,
    make_sheet_profile,
    read_data_sheet,
)
from joulecast.records import PROVENANCES, Json

if TYPE_CHECKING:
    from joulecast.store import ProfileSummary


@dataclass(frozen=True)
class CatalogueDevice:
    """A device that can be named wherever a command takes one.

    Attributes:
        data_sheet: Its figures and where they are from.
        profiles: Its profiles, the one that is used first; none if it was never measured.
    """

    data_sheet: DataSheet
    profiles: tuple[ProfileSummary, ...]

    @property
    def provenance(self) -> str:
        """Provenance of estimates for it."""
        return self.profiles[0].provenance if self.profiles else DATASHEET

    def to_dict(self) -> Json:
        """Return the device as JSON values."""
        return {
            **self.data_sheet.to_dict(),
            "provenance": self.provenance,
            "profiles": [one.key for one in self.profiles],
        }


def list_devices(*, store: str | None = None) -> tuple[CatalogueDevice, ...]:
    """List the devices of the catalogue, shipped ones first, then those that the user added.

    Any of them can be given as ``device``: if it has no profile, estimates rest on its data sheet.

    Args:
        store: Path or URL of the store, if not the usual one.

    Raises:
        InputError: A file of the user cannot be used.
    """
    known = _list_profiles(store)
    return tuple(_describe(sheet, known) for sheet in list_data_sheets())


def find_catalogue_device(name: str, store: str | None = None) -> CatalogueDevice:
    """Return one device of the catalogue, or the one that a ``.toml`` file describes.

    Raises:
        InputError: No device, or several, have this name.
    """
    sheet = read_data_sheet(name) if name.endswith(".toml") else find_data_sheet(name)
    return _describe(sheet, _list_profiles(store))


def summarise_sheet(sheet: DataSheet) -> ProfileSummary:
    """Return the summary of the profile that a data sheet becomes."""
    from joulecast.store import ProfileSummary

    profile = make_sheet_profile(sheet)
    return ProfileSummary(
        profile.key,
        profile.device.name,
        profile.device.power_mode,
        profile.runtime,
        profile.covers,
        profile.provenance,
        observation_count=0,
        estimators=("additive",),
        changed_at_s=0.0,
    )


def _list_profiles(store: str | None) -> Sequence[ProfileSummary]:
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        return opened.list_profiles()


def _describe(sheet: DataSheet, known: Sequence[ProfileSummary]) -> CatalogueDevice:
    own = [one for one in known if is_named(sheet, one.device)]
    # As ``match_profiles`` orders them: the user's own first.
    own.sort(key=lambda one: (one.shipped, PROVENANCES.index(one.provenance), -one.changed_at_s))
    return CatalogueDevice(sheet, tuple(own))
