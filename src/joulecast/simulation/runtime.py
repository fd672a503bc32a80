"""Run trials on a simulated device and its virtual clock, without a framework.

Preparing a trial takes virtual time, runs two steps, and refuses what a framework would refuse, so
that code tested here also works with a real runtime.
"""

from __future__ import annotations

from joulecast.operators import peak_memory
from joulecast.operators.setup_checks import refuse_processor
from joulecast.records import MODES, Device, Trial
from joulecast.simulation import SimulatedDevice
from joulecast.system.errors import InputError, NetError, OutOfMemoryError

_BUILD_S = 0.02


class SimulatedStep:
    """A trial that is ready to run on a simulated device."""

    def __init__(self, simulated: SimulatedDevice, trial: Trial, peak_bytes: int) -> None:
        self._simulated = simulated
        self._cost = simulated.true_cost(trial)
        self._peak_bytes = peak_bytes
        self._done = 0

    def run(self, count: int) -> None:
        self._simulated.issue(self._cost, count, self._done)
        self._done += count

    def wait(self) -> None:
        self._simulated.wait()

    def peak_memory_bytes(self) -> int:
        return self._peak_bytes

    def close(self) -> None:
        self._simulated.wait()


class SimulatedRuntime:
    """A simulated device as a runtime."""

    name = "simulated"

    def __init__(self, simulated: SimulatedDevice, modes: tuple[str, ...] = MODES) -> None:
        self.simulated = simulated
        self.modes = modes
        self.device = Device(
            simulated.name,
            processor="simulated",
            memory_bytes=simulated.memory_bytes,
            driver="simulated",
        )

    def prepare(self, trial: Trial) -> SimulatedStep:
        """Build the trial in virtual time and run it twice.

        Raises:
            NetError: The network is empty, or no layer trains.
            OutOfMemoryError: The trial does not fit into the device's memory.
        """
        layers = trial.network.layers
        if not layers:
            raise NetError("the network is empty: give one with layers")
        if trial.setup.phase == "train" and not any(layer.trains for layer in layers):
            raise NetError("no layer of the network trains: unfreeze one, or use inference")
        refuse_processor(trial.setup, self.simulated.name)
        if trial.mode not in self.modes:
            raise InputError(f"{self.simulated.name} cannot run {trial.mode}: use eager")
        peak_bytes = peak_memory(trial.network, trial.setup) * trial.execution.copies
        limit = self.simulated.memory_bytes
        if limit and peak_bytes > limit:
            raise OutOfMemoryError(
                f"the step needs {peak_bytes / 2**20:.0f} MiB but {self.simulated.name} has "
                f"{limit / 2**20:.0f} MiB: use a smaller batch or a narrower network"
            )
        step = SimulatedStep(self.simulated, trial, peak_bytes)
        self.simulated.sleep(_BUILD_S)
        step.run(2)
        step.wait()
        return step
