"""Measurers of devices of this machine."""

import pytest

from joulecast.measurer.local_devices import find_meter, name_lock, open_local_measurer
from joulecast.system.errors import InputError


def test_simulated_device_has_its_own_meter_and_clock():
    measurer = open_local_measurer("simulated:7", rounds=2, device_name="sim")
    assert (measurer.runtime.device.name, measurer.meter.name) == ("sim", "simulated")
    assert (measurer.rounds, measurer.now()) == (2, 0.0)
    assert measurer.run != open_local_measurer("simulated:7").run
    with pytest.raises(InputError, match="has its own meter"):
        open_local_measurer("simulated:7", "rapl")


@pytest.mark.parametrize("on", ["simulated:7", "cpu"])
def test_recorders_are_for_callers_that_store_windows(on):
    with pytest.raises(InputError, match="--meter later records windows"):
        find_meter("later", on) if on == "cpu" else open_local_measurer(on, "later")
    assert open_local_measurer("simulated:7", "later", allows_later=True).meter.is_recorder
    assert find_meter("later", "cpu", allows_later=True).is_recorder


def test_frameworks_share_the_lock_of_a_processor():
    assert name_lock("cpu") == name_lock("mnn:cpu") == "cpu"
    assert name_lock("simulated:7") is None
