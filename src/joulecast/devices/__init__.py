"""Devices: those of this machine, and the catalogue of data sheets (``devices.toml``)."""

from __future__ import annotations

from joulecast.devices.data_sheets import (
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
from joulecast.devices.detect import (
    detect_device,
    find_free_memory,
    find_gpu,
    has_amd_gpus,
    multiplies_bf16,
    parse_on,
)
from joulecast.records import DataSheet

__all__ = [
    "ALL",
    "DATASHEET",
    "DataSheet",
    "add_data_sheet",
    "detect_device",
    "find_data_sheet",
    "find_free_memory",
    "find_gpu",
    "find_user_folder",
    "has_amd_gpus",
    "is_named",
    "list_data_sheets",
    "make_sheet_profile",
    "match_data_sheet",
    "multiplies_bf16",
    "parse_on",
    "read_data_sheet",
    "search_data_sheets",
    "suggest_devices",
]
