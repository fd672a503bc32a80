"""Plan requests are consistent."""

import pytest

from joulecast.errors import InputError
from joulecast.uses.plan import DeviceSpec, Job, PlanRequest


def test_unknown_devices_are_refused():
    with pytest.raises(InputError, match="unknown device 'fridge'"):
        PlanRequest((Job("a", "net", 1, devices=("fridge",)),), (DeviceSpec("phone"),))


def test_steps_follow_from_epochs_and_samples():
    assert Job("a", "net", steps=7).count_steps(32) == 7
    assert Job("a", "net", epochs=2, samples=100).count_steps(32) == 8
