"""The devices of the catalogue, and which of them have a profile."""

from __future__ import annotations

import joulecast
from joulecast.features.catalogue import find_catalogue_device
from joulecast.records import Device, Profile
from joulecast.store import open_store


def test_every_device_says_where_its_estimates_come_from(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as opened:
        t4 = Profile(Device("tesla-t4", "Tesla T4"), "torch-2.11.0", "gpu", "measured")
        opened.import_profile(t4)
    found = {one.data_sheet.name: one for one in joulecast.list_devices(store=place)}
    assert found["nvidia-t4"].provenance == found["nvidia-h200"].provenance == "measured"
    assert [one.key for one in found["nvidia-t4"].profiles] == [t4.key]
    assert found["nvidia-l4"].provenance == "datasheet" and not found["nvidia-l4"].profiles
    data = find_catalogue_device("t4", place).to_dict()
    assert data["profiles"] == [t4.key] and data["power_limit_w"] == 70
