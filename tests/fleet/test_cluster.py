"""Workers of Dask run campaigns with the store of the coordinator."""

import sys

import pytest

from fleet_examples import REQUEST
from joulecast.errors import MissingError
from joulecast.fleet.cluster import open_cluster
from joulecast.fleet.fleet_devices import FleetDevice
from joulecast.store import open_store

# Nobody listens on these ports.
DEVICES = [FleetDevice(f"shelf-{port}", f"http://127.0.0.1:{port}") for port in (1, 9)]


def test_workers_run_campaigns_and_leave_them_in_the_store(tmp_path, monkeypatch):
    monkeypatch.delenv("JOULECAST_STORE", raising=False)
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as store, open_cluster(DEVICES, place, workers=1) as submit:
        store.fleet.replace_devices({one.name: one.to_dict() for one in DEVICES})
        key = store.fleet.add_request("lenet5", REQUEST.to_dict(), [one.name for one in DEVICES])
        attempts = [submit(one, key) for one in DEVICES]
        outcomes = [one.result() for one in attempts]
        devices = store.fleet.list_devices()
    assert [one.state for one in outcomes] == ["away", "away"]
    assert all("cannot be reached" in one.reason for one in outcomes)
    assert [one.state for one in devices] == ["away", "away"]


def test_cluster_without_dask_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(MissingError, match=r"pip install 'joulecast\[fleet\]'"),
        open_cluster(DEVICES, "store.sqlite", workers=1),
    ):
        pass
