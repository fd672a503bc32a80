"""The simulated runtime: its contract, host time and device time."""

from dataclasses import replace

import pytest

from joulecast.families import make_family
from joulecast.operators import peak_memory
from joulecast.records import Execution, Network, Setup, Trial
from joulecast.simulation import Chip, SimulatedDevice, make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.system.errors import NetError
from joulecast.testing.runtimes import SMALL, RuntimeContract


class TestSimulated(RuntimeContract):
    @pytest.fixture(autouse=True)
    def simulated(self):
        self._simulated = make_simulated_device(3, memory_bytes=2**28)

    def make_runtime(self):
        return SimulatedRuntime(self._simulated)

    def now(self):
        return self._simulated.now()

    def make_huge_trial(self):
        return Trial(make_family("cnn5"), Setup(batch=2**14))


def make_noiseless_device(seed=3):
    return SimulatedDevice(Chip(seed), noise=0.0, settle_share=0.0)


def test_issuing_takes_host_time_and_waiting_the_rest():
    simulated = make_noiseless_device()
    trial = Trial(make_family("cnn5"), Setup())
    cost = simulated.true_cost(trial)
    step = SimulatedRuntime(simulated).prepare(trial)
    begun = simulated.now()
    step.run(10)
    assert simulated.now() - begun == pytest.approx(10 * cost.issue_s)
    step.wait()
    assert simulated.now() - begun == pytest.approx(10 * cost.duration_s)


def test_peak_memory_includes_all_copies():
    trial = replace(SMALL, execution=Execution(copies=3))
    step = SimulatedRuntime(make_noiseless_device()).prepare(trial)
    assert step.peak_memory_bytes() == 3 * peak_memory(SMALL.network, SMALL.setup)


def test_frozen_network_runs_only_inference():
    frozen = Network(
        tuple(replace(layer, trains=False) for layer in SMALL.network.layers), SMALL.network.input
    )
    runtime = SimulatedRuntime(make_noiseless_device())
    with pytest.raises(NetError, match="no layer of the network trains"):
        runtime.prepare(Trial(frozen, Setup()))
    assert runtime.prepare(Trial(frozen, Setup(phase="inference"))).peak_memory_bytes() > 0
