"""Measure the training of Lightning's ``Trainer``.

from joulecast.callbacks.lightning import EnergyCallback

trainer = Trainer(callbacks=[EnergyCallback(budget="500 kJ")])
"""

from __future__ import annotations

import math
from typing import Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # the same package under its older name
    from pytorch_lightning import Callback  # type: ignore[assignment]

from joulecast.callbacks.module_reading import (
    TrainingStepModule,
    choose_optimizer,
    choose_precision,
    is_compiled,
    name_device,
)
from joulecast.callbacks.training_energy import EnergyHooks, TrainingRun, never_fail
from joulecast.records import Setup


class LightningEnergyCallback(EnergyHooks, Callback):
    """Estimates a run before its first step, measures it, and stops it at a budget.

    Scalars go to the trainer's loggers, every ``log_every_n_steps`` steps and at the end.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to measure."""
        self.has_failed = False
        self._seen_steps = 0
        self._begin(trainer, pl_module)

    @never_fail
    def _begin(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            self.has_failed = True
            return
        self._seen_steps = trainer.global_step
        self.begin_run(_describe_run(trainer, pl_module))

    @never_fail
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch, and say that a step begins with the first of its batches."""
        if self.energy is None:
            return
        self.energy.step_begin()
        self.add_inputs(TrainingStepModule(pl_module), (batch,))

    @never_fail
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step; log, and stop training where the budget is passed."""
        if self.energy is None:
            return
        if trainer.global_step == self._seen_steps:
            self.energy.batch_end()
            return
        self._seen_steps = trainer.global_step
        self.energy.step_end()
        if self._seen_steps % trainer.log_every_n_steps == 0:
            self._log(trainer)
        if self.energy.is_over_budget and self.energy.run.processes == 1:
            trainer.should_stop = True

    @never_fail
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Say that evaluation follows."""
        if self.energy is not None and not trainer.sanity_checking:
            self.energy.turn_to_other()

    @never_fail
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Say that a checkpoint is written."""
        if self.energy is not None and self.energy.summary is None:
            self.energy.turn_to_other()

    @never_fail
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log for the last time, end the measurement and store the observation."""
        if self.energy is not None:
            self._log(trainer)
            self.finish()

    @never_fail
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep what was measured until the exception."""
        self.finish(type(exception).__name__)

    def _log(self, trainer: Any) -> None:
        assert self.energy is not None
        scalars = self.energy.list_scalars()
        # Where Lightning's own callbacks log their scalars.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step=step)


EnergyCallback = LightningEnergyCallback


def _describe_run(trainer: Any, pl_module: Any) -> TrainingRun:
    device, notes = trainer.strategy.root_device, []
    name, note = choose_optimizer(trainer.optimizers[0]) if trainer.optimizers else ("sgd", "")
    notes.append(note)
    if len(trainer.optimizers) > 1:
        notes.append("Several optimizers are estimated as the first of them.")
    precision = str(trainer.precision)
    half = "bf16" if "bf16" in precision else "fp16" if precision.startswith("16") else ""
    setup = Setup(
        precision=choose_precision(device, half),
        optimizer=name,
        loss="own",
        accumulate=trainer.accumulate_grad_batches,
        compiled=is_compiled(pl_module) or getattr(pl_module, "_compiler_ctx", None) is not None,
    )
    total = trainer.estimated_stepping_batches
    steps = int(total) - trainer.global_step if math.isfinite(total) else 0
    return TrainingRun(
        name_device(device),
        steps if steps > 0 else None,
        setup,
        trainer.world_size,
        tuple(filter(None, notes)),
    )
