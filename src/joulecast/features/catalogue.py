"""List the devices of the catalogue, and which of them have a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from joulecast.devices.data_sheets import (
    add_data_sheet,
    find_data_sheet,
    is_named,
    list_data_sheets,
    make_sheet_profile,
    read_data_sheet,
)
from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.profiles import SHORT_KEY
from joulecast.records import DATASHEET, PROVENANCES, DataSheet, Json
from joulecast.store import ProfileSummary, open_store
from joulecast.system.errors import ArgumentError, arg
from joulecast.views.report import Answer, Report, Reportable, Text, make_table

_LISTED_PEAKS = ("fp32", "tf32", "bf16", "fp16")
_PEAK_COLUMNS = tuple(f">{name}" for name in _LISTED_PEAKS)
_COLUMNS = ("device", ">memory", *_PEAK_COLUMNS, ">bandwidth", ">power", "profile")
_UNKNOWN = {"idle_w": "unknown: assumed from the power limit and the type of memory"}
_NOTES = (
    "Peaks in TFLOP/s, dense, with sums in fp32; memory in GiB, bandwidth in GB/s, power in W.",
    "profile: where estimates come from; datasheet: it was never measured.",
    "`joulecast devices NAME` shows every figure and its source; `--add FILE.toml` adds yours.",
)

CatalogueName = Annotated[
    str | None, Argument("A device, or a TOML file that describes one.", is_positional=True)
]
SheetFile = Annotated[
    str | None,
    Argument(
        "Add the device that a TOML file describes to your own.",
        metavar="FILE.toml",
        harm="writes a file",
    ),
]


@verb
def show_devices(
    name: CatalogueName = None, *, add: SheetFile = None, store: given.Store = None
) -> Answer | CatalogueDevice:
    """List the devices of the catalogue, or show all figures of NAME and their sources.

    Any of them can be given to --device and --devices. Where it has no profile, estimates rest on
    its data sheet and say so. NAME may also be a TOML file that describes a device.
    """
    if add is not None:
        if name is not None:
            raise ArgumentError(f"give {arg('name')} or {arg('add')}, not both")
        sheet, path = add_data_sheet(add)
        text = f"Added {sheet.name} as {path}: give --device {sheet.name}. Remove the file to "
        return Answer({"device": sheet.name, "file": str(path)}, Report(f"{text}remove it.", ()))
    if name is not None:
        return find_catalogue_device(name, store)
    found = list_devices(store=store)
    table = make_table(_COLUMNS, map(_format_row, found))
    notes = (Text(note, "note") for note in _NOTES)
    data = {"devices": [one.to_dict() for one in found]}
    return Answer(data, Report("", (table, *notes), kind="devices"))


@dataclass(frozen=True)
class CatalogueDevice(Reportable):
    """A device that can be named wherever a command takes one.

    Attributes:
        profiles: Its profiles, the one that is used first; none if it was never measured.
    """

    data_sheet: DataSheet  # its figures and where they are from
    profiles: tuple[ProfileSummary, ...]

    @property
    def provenance(self) -> str:
        """Provenance of estimates for it."""
        return self.profiles[0].provenance if self.profiles else DATASHEET

    def to_dict(self) -> Json:
        return {
            **self.data_sheet.to_dict(),
            "provenance": self.provenance,
            "profiles": [one.key for one in self.profiles],
        }

    def report(self) -> Report:
        sheet = self.data_sheet
        numbers: dict[str, int] = {}
        cells = []
        for label, value, field in _list_figures(sheet):
            source = _UNKNOWN.get(field, "unknown")
            if text := sheet.sources.get(field):
                source = f"[{numbers.setdefault(text, len(numbers) + 1)}]"
            cells.append((label, value, source))
        facts = (sheet.vendor, sheet.architecture, str(sheet.year or ""))
        return Report(
            f"{sheet.name}: {sheet.title} ({', '.join(filter(None, facts))})",
            (
                make_table(("figure", ">value", "source"), cells),
                *(Text(f"[{number}] {text}") for text, number in numbers.items()),
                Text(_explain_estimates(self), "note"),
            ),
            self.provenance,
            "device",
        )


def list_devices(*, store: str | None = None) -> tuple[CatalogueDevice, ...]:
    """List the devices of the catalogue, shipped ones first, then those that the user added.

    Any of them can be given as ``device``: if it has no profile, estimates rest on its data sheet.

    Args:
        store: Path or URL of the store, if not the usual one.

    Raises:
        InputError: A file of the user cannot be used.
    """
    return _find_profiles(list_data_sheets(), store)


def find_catalogue_device(name: str, store: str | None = None) -> CatalogueDevice:
    """Return one device of the catalogue, or the one that a ``.toml`` file describes."""
    sheet = read_data_sheet(name) if name.endswith(".toml") else find_data_sheet(name)
    return _find_profiles((sheet,), store)[0]


def summarise_sheet(sheet: DataSheet) -> ProfileSummary:
    """Return the summary of the profile that a data sheet becomes."""
    one = make_sheet_profile(sheet)
    facts = (one.device.name, one.device.power_mode, one.runtime, one.covers, one.provenance)
    return ProfileSummary(one.key, *facts, 0, ("additive",), changed_at_s=0.0)


def _find_profiles(sheets: Sequence[DataSheet], store: str | None) -> tuple[CatalogueDevice, ...]:
    """Return devices with their profiles, ordered as ``match_profiles`` does: own ones first."""
    with open_store(store, create=False) as opened:
        known = sorted(
            opened.list_profiles(),
            key=lambda one: (one.shipped, PROVENANCES.index(one.provenance), -one.changed_at_s),
        )
    return tuple(
        CatalogueDevice(sheet, tuple(one for one in known if is_named(sheet, one.device)))
        for sheet in sheets
    )


def _format_row(device: CatalogueDevice) -> tuple[str, ...]:
    sheet = device.data_sheet
    peaks = (sheet.flops_per_s.get(name) for name in _LISTED_PEAKS)
    return (
        sheet.name,
        f"{sheet.memory_bytes / 2**30:g}",
        *("-" if peak is None else f"{peak / 1e12:g}" for peak in peaks),
        f"{sheet.bytes_per_s / 1e9:g}",
        f"{sheet.power_limit_w:g}",
        device.provenance,
    )


def _list_figures(sheet: DataSheet) -> list[tuple[str, str, str]]:
    """Return label, value and field of every figure; peaks have their precision as field."""
    rows: list[tuple[str, float | None, float, str, str]] = [
        *(
            (f"{name} peak", peak, 1e12, "TFLOP/s", name)
            for name, peak in sheet.flops_per_s.items()
        ),
        ("bandwidth", sheet.bytes_per_s, 1e9, "GB/s", "bytes_per_s"),
        ("memory", sheet.memory_bytes, 2**30, f"GiB {sheet.memory_type}", "memory_bytes"),
        ("units (SM, CU)", sheet.units, 1, "", "units"),
        ("clock", sheet.clock_hz, 1e6, "MHz", "clock_hz"),
        ("L2 cache", sheet.l2_bytes, 2**20, "MiB", "l2_bytes"),
        ("power limit", sheet.power_limit_w, 1, "W", "power_limit_w"),
        ("idle power", sheet.idle_w, 1, "W", "idle_w"),
        ("process", sheet.process_nm, 1, "nm", "process_nm"),
        ("link", sheet.link_bytes_per_s, 1e9, "GB/s", "link_bytes_per_s"),
    ]
    return [
        (label, "-" if value is None else f"{value / scale:g} {unit}".strip(), field)
        for label, value, scale, unit, field in rows
    ]


def _explain_estimates(device: CatalogueDevice) -> str:
    if not device.profiles:
        return (
            "Estimates rest on this data sheet, since the device was never measured: they are "
            "labelled datasheet, and have wide intervals."
        )
    best = device.profiles[0]
    key = f"{best.key[:SHORT_KEY]} ({best.provenance}, {best.runtime})"
    return f"Estimates rest on its profile {key}, not on this data sheet alone."
