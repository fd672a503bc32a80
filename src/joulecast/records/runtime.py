"""Define what a runtime is: a framework that builds a Trial and runs its steps on a device.

A runtime returns a Step that has already run and been checked: its loss is finite and every
trainable weight changed. The measurer runs it in windows and does not know the framework.
"""

from __future__ import annotations

from typing import Protocol

from joulecast.records import Device, Trial


class Runtime(Protocol):
    """A framework on one device."""

    name: str
    """Framework and version, ``torch-2.13.0``: part of a profile's key."""

    device: Device

    modes: tuple[str, ...]
    """The modes of ``records.MODES`` that it can run; always includes ``eager``."""

    def prepare(self, trial: Trial) -> Step:
        """Build the trial, run it twice and check that it trains.

        Raises:
            NetError: The network cannot be built.
            NotTrainingError: The loss is not finite, or a trainable weight did not change.
            OutOfMemoryError: The trial does not fit on the device.
        """


class Step(Protocol):
    """A trial that is built, checked, and ready to run.

    Steps that inherit it are finished when ``run`` returns, and their memory is unknown.
    """

    def run(self, count: int) -> None:
        """Issue ``count`` steps; may return before the device has finished them."""

    def wait(self) -> None:
        """Return when the device has finished every issued step."""
        return

    def peak_memory_bytes(self) -> int:
        """Return the peak memory of this step on the device; 0 if it is unknown."""
        return 0

    def close(self) -> None:
        """Free the resources of the step. Closing twice is allowed."""
