"""What callbacks of all trainers share: their options, the run they measure, its batches."""

from __future__ import annotations

from typing import Any

from joulecast.callbacks.failures import show_messages
from joulecast.callbacks.module_reading import Shapes, list_shapes
from joulecast.callbacks.training_energy import TrainingEnergy
from joulecast.callbacks.training_run import CallbackOptions, TrainingRun, TrainingSummary


class EnergyHooks:
    """Measures the runs of a trainer, one after the other.

    Attributes:
        energy: The present run, or the last one; None before the first.
        has_failed: Something went wrong, and nothing is measured until the next run.
    """

    def __init__(
        self,
        budget: str | None = None,
        *,
        meter: str = "auto",
        device: str = "",
        store: str | None = None,
        save: bool = True,
    ) -> None:
        """Make the callback.

        Args:
            budget: Energy at which training is stopped, like ``500 kJ``; by default there is none.
            meter: Name of a meter, as ``joulecast detect`` lists them.
            device: Device, key or file of the profile to estimate from; by default that of the
                device that trains.
            store: Path or URL of the store, if not the usual one.
            save: Store the observation, so that the profile learns from the run.

        Raises:
            InputError: The budget is not an energy.
        """
        super().__init__()
        self.options = CallbackOptions(budget, meter, device, store, save)
        self.energy: TrainingEnergy | None = None
        self.has_failed = False
        self._first_shapes: Shapes | None = None

    @property
    def summary(self) -> TrainingSummary | None:
        """What the last run took; None while it runs."""
        return None if self.energy is None else self.energy.summary

    def finish(self, error: str = "") -> TrainingSummary | None:
        """End the measurement of a run that its trainer did not end, such as after an exception.

        Args:
            error: Name of the exception.
        """
        return None if self.energy is None else self.energy.finish(error)

    def abandon(self, error: str) -> None:
        """Release model and meter after a failure; what was measured until then is kept.

        Args:
            error: Name of the exception.
        """
        try:
            self.release_model()
        finally:
            if self.energy is not None:
                self.energy.abandon(error)

    def release_model(self) -> None:
        """Remove what was added to the user's module; by default nothing was."""

    def begin_run(self, run: TrainingRun) -> TrainingEnergy:
        """Begin to measure a run; one that was not ended is ended first."""
        show_messages()
        # The trainer did not say which exception ended it.
        self.finish(Exception.__name__)
        self.energy = self._first_shapes = None
        self.energy = TrainingEnergy(self.options, run)
        return self.energy

    def add_inputs(self, module: Any, inputs: Any) -> None:
        """Count a batch; the first one is read together with its module."""
        if self.energy is None or self.energy.summary is not None:
            return
        shapes = list_shapes(inputs)
        if self._first_shapes is None:
            self._first_shapes = shapes
            self.energy.read_batch(module, inputs)
        self.energy.add_batch(is_odd=shapes != self._first_shapes)
