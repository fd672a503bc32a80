"""Who can finish a run: memory, battery and deadline, with the probability that is asked for."""

from dataclasses import replace

import pytest

from fleet_examples import make_device
from joulecast.fleet.fleet_forecast import FleetEstimate, RunQuestion, forecast_fleet
from joulecast.records import Estimate, Setup
from joulecast.store.campaigns import StoredDevice
from joulecast.system.errors import InputError, MissingError

# 2 J in 10 ms, each within 10 % with 95 %.
STEP = Estimate(
    2.0, (1.8, 2.2), 0.95, 0.01, 2**20, (), 0.0, "simulated", "board", "simulated-5", "additive",
    duration_interval_s=(0.009, 0.011), device_memory_bytes=2**30,
)  # fmt: skip
QUESTION = RunQuestion(steps=1000)


def store_device(name="phone", profile_key="k1", **values):
    device = make_device(name, **values)
    return StoredDevice(name, device.to_dict(), "ready", "", profile_key, "", 0.0)


def forecast_one(question=QUESTION, step=STEP, **values):
    (found,) = forecast_fleet([store_device(**values)], question, lambda key: step)
    return found


def test_device_on_mains_power_finishes():
    found = forecast_one()
    assert found.can_finish and found.probability == 1.0 and not found.obstacle
    assert found.energy_j == pytest.approx(2000.0, rel=1e-3)
    assert found.interval_j == pytest.approx((1800.0, 2200.0), rel=0.02)
    assert found.duration_s == 10.0 and found.battery_share is None
    assert found.step_energy_j == 2.0 and found.profile_key == "k1"


def test_battery_must_suffice_above_its_reserve_with_the_confidence():
    enough = forecast_one(battery_j=10_000.0, charge_share=0.5, reserve_share=0.2)
    assert enough.can_finish and enough.battery_share == pytest.approx(0.2, rel=1e-3)
    narrow = {"battery_j": 10_000.0, "charge_share": 0.405, "reserve_share": 0.2}
    unsure = forecast_one(**narrow)
    assert not unsure.can_finish and unsure.obstacle == "battery"
    assert 0.5 < unsure.probability < 0.9
    assert unsure.reason.startswith("needs up to 2.1") and unsure.reason.endswith("has 2.05 kJ")
    assert forecast_one(replace(QUESTION, confidence=0.5), **narrow).can_finish
    empty = forecast_one(battery_j=10_000.0, charge_share=0.1, reserve_share=0.2)
    assert empty.probability == 0.0 and empty.obstacle == "battery"


def test_power_that_the_meter_does_not_see_drains_the_battery_too():
    seen = forecast_one(battery_j=10_000.0)
    rest = forecast_one(battery_j=10_000.0, rest_w=50.0)
    assert rest.energy_j == pytest.approx(seen.energy_j + 500.0, rel=1e-6)
    assert rest.battery_share > seen.battery_share


def test_deadline_must_be_met_with_the_confidence():
    assert forecast_one(replace(QUESTION, deadline_s=12.0)).can_finish
    late = forecast_one(replace(QUESTION, deadline_s=10.1))
    assert late.obstacle == "deadline" and 0.5 < late.probability < 0.7
    assert late.reason.startswith("takes up to 10.")
    # What is less likely is the obstacle.
    both = forecast_one(replace(QUESTION, deadline_s=10.1), battery_j=1900.0)
    assert both.obstacle == "battery" and both.probability < late.probability


def test_memory_of_the_file_or_of_the_device_must_suffice():
    assert forecast_one(memory_bytes=2**21).can_finish
    small = forecast_one(memory_bytes=2**19)
    assert (small.can_finish, small.obstacle, small.probability) == (False, "memory", 0.0)
    assert small.reason == "needs 1.00 MiB of memory, has 512 KiB"
    assert forecast_one(step=replace(STEP, device_memory_bytes=2**19)).obstacle == "memory"


def test_charge_of_this_moment_replaces_that_of_the_file():
    low = replace(QUESTION, charges={"phone": 0.1})
    assert forecast_one(low, battery_j=10_000.0).obstacle == "battery"
    with pytest.raises(InputError, match="no device of the fleet is called 'laptop'"):
        forecast_one(replace(QUESTION, charges={"laptop": 0.1}))
    with pytest.raises(InputError, match="phone has no battery"):
        forecast_one(low)


@pytest.mark.parametrize(
    "values", [{"steps": 0}, {"deadline_s": 0.0}, {"confidence": 1.0}, {"charges": {"phone": 1.5}}]
)
def test_impossible_questions_are_refused(values):
    with pytest.raises(InputError, match="give"):
        RunQuestion(**{"steps": 10, **values})


def test_devices_are_ranked_and_those_of_one_profile_are_estimated_once():
    asked = []

    def estimate(key):
        asked.append(key)
        if key == "k3":
            raise MissingError("no profile yet: run `joulecast fleet profile NET`")
        return replace(STEP, energy_j=1.0, interval_j=(0.9, 1.1)) if key == "k2" else STEP

    devices = [
        store_device("new", "k3"),
        store_device("silent", ""),
        store_device("empty", "k1", battery_j=10.0),
        store_device("strong", "k1"),
        store_device("frugal", "k2"),
    ]
    found = forecast_fleet(devices, QUESTION, estimate)
    assert [one.name for one in found] == ["frugal", "strong", "empty", "new", "silent"]
    assert sorted(asked) == ["k1", "k2", "k3"]
    assert [one.can_finish for one in found] == [True, True, False, None, None]
    assert found[3].reason.startswith("no profile yet")
    assert "never answered" in found[4].reason
    whole = FleetEstimate("lenet5", Setup(), 1000, 0.95, 0.9, None, found)
    assert FleetEstimate.from_dict(whole.to_dict()) == whole
