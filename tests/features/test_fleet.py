"""Fleets from Python: forecasts for schedulers, and what cannot be run."""

import pytest

import joulecast
from fleet_examples import REQUEST
from joulecast.features.fleet import follow_request, run_fleet
from joulecast.store import open_store
from joulecast.system.errors import DeviceAwayError, InputError, MissingError


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "store.sqlite")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text('[[device]]\nname = "phone"\naddress = "http://127.0.0.1:9"\n')
    return str(path)


def test_fleet_starts_if_a_device_answers_or_campaigns_are_open(place, file, monkeypatch):
    class StartedError(Exception):
        pass

    def start(*_):
        raise StartedError

    monkeypatch.setattr("joulecast.fleet.fleet_campaigns.open_cluster", start)
    monkeypatch.setattr("joulecast.features.fleet._CHECK_UP_S", 0.0)
    shown = {"on_start": print, "on_event": print}
    with pytest.raises(InputError, match="no argument 'colour'"):
        joulecast.estimate_fleet("lenet5", steps=10, colour="red", store=place)
    with pytest.raises(InputError, match="a store that its workers share"):
        run_fleet(file, ":memory:", **shown)
    with pytest.raises(DeviceAwayError, match="no device of the fleet is ready: phone: the agent"):
        run_fleet(file, place, **shown)
    with open_store(place) as store:
        (device,) = store.fleet.list_devices()
        assert device.state == "away" and "cannot be reached" in device.reason
        key = store.fleet.add_request("lenet5", REQUEST.to_dict(), ["phone"])
    # The request of a fleet that went down is not waited for.
    with pytest.raises(MissingError, match="the fleet went down"):
        follow_request(key, place)
    (campaign,) = follow_request(key, place, waits=False)
    assert campaign.state == "waiting"
    with pytest.raises(StartedError):
        run_fleet(file, place, **shown)
