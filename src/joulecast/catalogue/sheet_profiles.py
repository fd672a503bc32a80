"""Make the profile of a device that was never measured: its data sheet, without observations."""

from __future__ import annotations

from joulecast.records import DataSheet, Device, Profile

DATASHEET = "datasheet"
"""Provenance of what rests on a data sheet."""


def make_sheet_profile(sheet: DataSheet) -> Profile:
    """Return a profile that consists of a data sheet; estimates from it are for PyTorch."""
    device = Device(
        sheet.name,
        sheet.title,
        sheet.memory_bytes,
        power_mode=f"limit {sheet.power_limit_w:g}W",
    )
    return Profile(device, "torch", sheet.covers, DATASHEET, data_sheet=sheet)
