"""Measure the training of Lightning's ``Trainer``.

from joulecast.callbacks.lightning import EnergyCallback

trainer = Trainer(callbacks=[EnergyCallback(budget="500 kJ")])
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # the same package under its older name
    from pytorch_lightning import Callback  # type: ignore[assignment]

from joulecast.callbacks.module_reading import TrainingStepModule, is_compiled
from joulecast.callbacks.training_energy import (
    EnergyHooks,
    TrainingEnergy,
    TrainingRun,
    describe_run,
    never_fail,
)


class LightningEnergyCallback(EnergyHooks, Callback):
    """Estimates a run before its first step, measures it, and stops it at a budget.

    Scalars go to the trainer's loggers, every ``log_every_n_steps`` steps and at the end.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to measure, in one of several processes."""
        self.has_failed = not trainer.is_global_zero
        self._begin(trainer, pl_module)

    @never_fail
    def _begin(self, trainer: Any, pl_module: Any) -> None:
        self._seen_steps = trainer.global_step
        self.begin_run(_describe_run(trainer, pl_module))

    @never_fail
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if energy := self.running:
            energy.step_begin()
            self.add_inputs(TrainingStepModule(pl_module), (batch,))

    @never_fail
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (energy := self.running) is None:
            return
        if trainer.global_step == self._seen_steps:
            energy.batch_end()
            return
        self._seen_steps = trainer.global_step
        energy.step_end()
        if self._seen_steps % trainer.log_every_n_steps == 0:
            _log(energy, trainer)
        if energy.must_stop:
            trainer.should_stop = True

    @never_fail
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking and (energy := self.running):
            energy.turn_to_other()

    @never_fail
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        if energy := self.running:
            energy.turn_to_other()

    @never_fail
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if energy := self.running:
            _log(energy, trainer)
            energy.finish()

    @never_fail
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.finish(type(exception).__name__)


EnergyCallback = LightningEnergyCallback


def _log(energy: TrainingEnergy, trainer: Any) -> None:
    # Where Lightning's own callbacks log their scalars.
    step = trainer.fit_loop.epoch_loop._batches_that_stepped
    scalars = energy.list_scalars()
    for logger in trainer.loggers:
        logger.log_metrics(scalars, step=step)


def _describe_run(trainer: Any, pl_module: Any) -> TrainingRun:
    precision, optimizers = str(trainer.precision), trainer.optimizers
    several = "Several optimizers are estimated as the first of them."
    return describe_run(
        trainer.strategy.root_device,
        optimizers[0] if optimizers else None,
        "bf16" if "bf16" in precision else "fp16" if precision.startswith("16") else "",
        accumulate=trainer.accumulate_grad_batches,
        compiled=is_compiled(pl_module) or getattr(pl_module, "_compiler_ctx", None) is not None,
        steps=trainer.estimated_stepping_batches - trainer.global_step,
        processes=trainer.world_size,
        notes=(several,) if len(optimizers) > 1 else (),
    )
