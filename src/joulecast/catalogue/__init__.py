"""The catalogue: data sheets of devices that people train on, and those that users add.

devices.toml             figures of 47 devices, and their sources
sheet_files.py           a TOML table ──▶ DataSheet; every error is one line
user_sheets.py           the folder of a user's own TOML files
device_names.py          "Tesla V100-PCIE-32GB", "rtx 4090" ──▶ the data sheet that is meant
sheet_profiles.py        DataSheet ──▶ Profile without observations
"""

from __future__ import annotations

from joulecast.catalogue.device_names import (
    add_data_sheet,
    find_data_sheet,
    is_named,
    list_data_sheets,
    match_data_sheet,
    search_data_sheets,
    suggest_devices,
)
from joulecast.catalogue.sheet_files import ALL, read_data_sheet
from joulecast.catalogue.sheet_profiles import DATASHEET, make_sheet_profile
from joulecast.catalogue.user_sheets import find_user_folder
from joulecast.records import DataSheet

__all__ = [
    "ALL",
    "DATASHEET",
    "DataSheet",
    "add_data_sheet",
    "find_data_sheet",
    "find_user_folder",
    "is_named",
    "list_data_sheets",
    "make_sheet_profile",
    "match_data_sheet",
    "read_data_sheet",
    "search_data_sheets",
    "suggest_devices",
]
