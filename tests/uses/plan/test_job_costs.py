"""Costs of jobs become numbers of a scheduling problem."""

import math

import pytest

from joulecast.errors import InputError
from joulecast.families import make_family
from joulecast.kinds import network_work
from joulecast.records import Setup
from joulecast.uses.plan import DeviceSpec, JobCost, RunForecast
from joulecast.uses.plan.job_costs import bound_cost, estimate_jobs, expect_cost, make_device
from joulecast.uses.plan.plan_request import Job, PlanRequest

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


@pytest.mark.parametrize("net", ["lenet5", "resnet18"])
def test_a_stated_speed_has_a_floor_for_each_kernel(net):
    """No laptop trains 200,000 steps of LeNet in 22 s, whatever its FLOP/s."""
    network, setup, steps = make_family(net), Setup(batch=8), 1000
    work = network_work(network, setup).total
    for flops_per_s in (1e9, 1e15):
        spec = DeviceSpec("m", power_w=30.0, flops_per_s=flops_per_s, launch_s=1e-5)
        request = PlanRequest((Job("a", net, steps=steps),), (spec,))
        run = estimate_jobs(request, {"a": (network, setup)}, {})["a"]["m"].run
        assert run.duration_s == pytest.approx(
            steps * max(work.flops / flops_per_s, work.launches * 1e-5)
        )
        assert run.device_energy_j == pytest.approx(30 * run.duration_s)
