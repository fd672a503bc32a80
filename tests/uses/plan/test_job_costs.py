"""Costs of jobs become numbers of a scheduling problem."""

import math

import pytest

from joulecast.errors import InputError
from joulecast.uses.plan import DeviceSpec, JobCost, RunForecast
from joulecast.uses.plan.job_costs import bound_cost, expect_cost, make_device

COST = JobCost(RunForecast(4500.0, 300.0, 0.3, 0.2, rest_w=2.0), 1.0, "modelled", "")


def test_device_without_profile_has_what_is_stated():
    device = make_device(DeviceSpec("m", idle_w=3.0, rest_w=2.0, asleep_w=1.0), None)
    assert (device.awake_w, device.asleep_w, device.memory_bytes) == (5.0, 1.0, math.inf)


def test_more_power_asleep_than_awake_is_refused():
    with pytest.raises(InputError, match="asleep_w is 5 W"):
        make_device(DeviceSpec("m", idle_w=2.0, asleep_w=5.0), None)


def test_upper_bounds_are_above_expected_costs():
    for max_parallel in (1, 2):
        device = make_device(
            DeviceSpec("m", idle_w=3.0, rest_w=2.0, max_parallel=max_parallel), None
        )
        expected, bound = expect_cost(device, COST, 0.5), bound_cost(device, COST, 0.9)
        assert expected.energy_j(device) == pytest.approx(4500 + 2 * 300)
        assert bound.energy_j(device) > expected.energy_j(device)
        assert bound.duration_s == pytest.approx(300 * math.exp(1.2816 * 0.2), rel=1e-3)
