"""The catalogue: data sheets of 47 devices (``devices.toml``), and those that users add."""

from __future__ import annotations

from joulecast.catalogue.data_sheets import (
    ALL,
    DATASHEET,
    add_data_sheet,
    find_data_sheet,
    find_user_folder,
    is_named,
    list_data_sheets,
    make_sheet_profile,
    match_data_sheet,
    read_data_sheet,
    search_data_sheets,
    suggest_devices,
)
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
