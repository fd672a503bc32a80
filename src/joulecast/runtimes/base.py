"""What a runtime is: something that builds a Trial and runs its steps.

One package per framework stands beside this file. A runtime takes a Trial and gives a Step that has
already run and been checked: its loss is finite and every trainable weight moved. The rig then runs
it in windows and never needs to know which framework it is.
"""

from __future__ import annotations

from typing import Protocol

from joulecast.records import Device, Trial


class Step(Protocol):
    """A trial that is built, warm enough to have been checked, and ready to run."""

    def run(self, count: int) -> None:
        """Issue ``count`` steps; may return before the device has finished them."""

    def wait(self) -> None:
        """Return when the device has finished every step issued so far."""

    def peak_memory_bytes(self) -> int:
        """Most memory that the device held for this step; 0 where it cannot be told."""

    def close(self) -> None:
        """Free what the step holds. Closing twice does no harm."""


class Runtime(Protocol):
    """A framework on one device."""

    name: str
    """Framework and version, ``torch-2.13.0``: part of a profile's key."""

    device: Device

    modes: tuple[str, ...]
    """Which of ``records.MODES`` it can run: all have ``eager``."""

    def prepare(self, trial: Trial) -> Step:
        """Build the trial, run it twice and check that it trains.

        Raises:
            NetError: The network cannot be built.
            NotTrainingError: The loss is not finite, or a trainable weight did not move.
            OutOfMemoryError: It does not fit on the device.
        """
