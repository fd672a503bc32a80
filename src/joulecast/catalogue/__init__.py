"""The catalogue: data sheets of devices that people train on, and those that users add.

devices.toml             figures and their sources, of about 45 devices
sheet_files.py           a TOML table ──▶ DataSheet; every error is one line
device_names.py          "Tesla V100-PCIE-32GB", "v100" ──▶ the data sheet that is meant
user_sheets.py           the folder of a user's own TOML files
"""

from __future__ import annotations

from joulecast.catalogue.device_names import find_data_sheet, list_data_sheets
from joulecast.catalogue.sheet_files import read_data_sheet
from joulecast.records import DataSheet

__all__ = ["DataSheet", "find_data_sheet", "list_data_sheets", "read_data_sheet"]
