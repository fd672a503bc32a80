"""A runtime without a framework: steps that run in a simulated world, on its virtual clock.

Takes a World, gives Steps. Preparing takes virtual time as building does, runs two steps and
refuses what a framework would refuse: what is tested against a world holds for a real runtime.
"""

from __future__ import annotations

from joulecast.errors import InputError, NetError, OutOfMemoryError
from joulecast.kinds import peak_memory
from joulecast.records import MODES, Device, Trial
from joulecast.simulation import SimulatedDevice

_BUILD_S = 0.02


class SimulatedStep:
    """A trial that is ready to run in a world."""

    def __init__(self, world: SimulatedDevice, trial: Trial, peak_bytes: int) -> None:
        self._world = world
        self._cost = world.law(trial)
        self._peak_bytes = peak_bytes
        self._done = 0

    def run(self, count: int) -> None:
        """Issue steps: the clock moves by the host's time only."""
        self._world.issue(self._cost, count, self._done)
        self._done += count

    def wait(self) -> None:
        """Move the clock to the end of the last step."""
        self._world.wait()

    def peak_memory_bytes(self) -> int:
        """What the table of kinds says that training holds."""
        return self._peak_bytes

    def close(self) -> None:
        """Wait for what is still running; there is nothing to free."""
        self._world.wait()


class SimulatedRuntime:
    """A world as a runtime."""

    name = "simulated"

    def __init__(self, world: SimulatedDevice, modes: tuple[str, ...] = MODES) -> None:
        self._world = world
        self.modes = modes
        self.device = Device(
            world.name, processor="simulated", memory_bytes=world.memory_bytes, driver="simulated"
        )

    def prepare(self, trial: Trial) -> SimulatedStep:
        """Build the trial in virtual time and run it twice."""
        _check_trains(trial)
        if trial.execution.mode not in self.modes:
            raise InputError(f"{self._world.name} cannot run {trial.execution.mode}: use eager")
        peak_bytes = peak_memory(trial.network, trial.setup) * trial.execution.copies
        limit = self._world.memory_bytes
        if limit and peak_bytes > limit:
            raise OutOfMemoryError(
                f"the step needs {peak_bytes / 2**20:.0f} MiB but {self._world.name} has "
                f"{limit / 2**20:.0f} MiB: take a smaller batch or a narrower net"
            )
        step = SimulatedStep(self._world, trial, peak_bytes)
        self._world.sleep(_BUILD_S)
        step.run(2)
        step.wait()
        return step


def _check_trains(trial: Trial) -> None:
    layers = trial.network.layers
    if not layers:
        raise NetError("the network is empty: there is nothing to run; give one with layers")
    if trial.setup.phase == "train" and not any(layer.trains for layer in layers):
        raise NetError("no layer of the network trains: unfreeze one, or ask for inference")
