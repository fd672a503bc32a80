"""Contract suites fail for what breaks the contract, and helpers of benchmarks."""

from dataclasses import replace

import pytest

from benchmarks.common import find_processor
from joulecast.meters import GuardedMeter, Reading
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.testing.meters import MeterContract
from joulecast.testing.runtimes import RuntimeContract


class WrongMeter(GuardedMeter):
    """A meter that returns a given reading."""

    name, covers = "wrong", "cpu"

    def __init__(self, reading):
        self._reading = reading

    def _start(self):
        pass

    def _stop(self):
        return self._reading


@pytest.mark.parametrize(
    ("reading", "test"),
    [
        (Reading(-1.0, 2.0), "test_reading_is_finite_and_positive_under_load"),
        (Reading(1.0, 2.0, ("odd",)), "test_faults_have_known_names"),
        (Reading(1.0, 2.0, ("gap",)), "test_constant_load_has_no_faults"),
        (Reading(1.0, 9.0), "test_duration_is_that_of_the_window"),
        (Reading(1.0, 2.0), "test_energy_grows_with_the_window"),
    ],
)
def test_meter_contract_rejects(reading, test):
    class Contract(MeterContract):
        def make_meter(self):
            return WrongMeter(reading)

        def load(self, duration_s):
            pass

    with pytest.raises(AssertionError):
        getattr(Contract(), test)()


def test_runtime_contract_rejects_a_device_without_a_name():
    class Contract(RuntimeContract):
        def make_runtime(self):
            runtime = SimulatedRuntime(make_simulated_device(0))
            runtime.device = replace(runtime.device, name="")
            return runtime

    with pytest.raises(AssertionError):
        Contract().test_runtime_names_itself_and_its_device()


def test_processor_has_a_name():
    assert isinstance(find_processor(), str)
