"""Measure the training of Hugging Face's ``Trainer``.

from joulecast.callbacks.transformers import EnergyCallback

trainer = Trainer(model, args, train_dataset=data, callbacks=[EnergyCallback(budget="500 kJ")])
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from joulecast.callbacks.module_reading import is_compiled, join_arguments, watch_calls
from joulecast.callbacks.training_energy import LOGGER, EnergyHooks, describe_run, never_fail


class TransformersEnergyCallback(EnergyHooks, TrainerCallback):
    """Estimates a run before its first step, measures it, and stops it at a budget.

    Scalars go where the trainer's ``report_to`` sends its own, whenever it logs.
    """

    _model: Any = None
    _end_watching: Callable[[], None] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to measure, in one of several processes."""
        self.has_failed = not state.is_world_process_zero
        self._begin(args, state, **kwargs)

    @never_fail
    def _begin(
        self, args: TrainingArguments, state: TrainerState, model: Any, optimizer: Any, **_: Any
    ) -> None:
        self.release_model()
        _move_before_loggers(self)
        run = describe_run(
            args.device,
            optimizer,
            "bf16" if args.bf16 else "fp16" if args.fp16 else "",
            accumulate=args.gradient_accumulation_steps,
            compiled=bool(args.torch_compile) or is_compiled(model),
            steps=state.max_steps - state.global_step,
            processes=args.world_size,
        )
        self.begin_run(run)
        # The first call of the module shows the batch as it is: taking one from the loader would
        # change the order of the data.
        self._model = getattr(model, "_orig_mod", model)
        self._end_watching = watch_calls(_find_called_module(model), self)

    @never_fail
    def see_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._model.training:
            self.add_inputs(self._model, join_arguments(self._model, args, kwargs))

    @never_fail
    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        if energy := self.running:
            energy.step_begin()

    @never_fail
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if energy := self.running:
            energy.step_end()
            self._turn(control)
            if energy.must_stop:
                control.should_training_stop = True

    @never_fail
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._turn(control)

    @never_fail
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        is_training = not any(name.startswith(("eval_", "test_")) for name in logs or ())
        if logs is not None and is_training and (energy := self.running):
            scalars = energy.list_scalars()
            logs.update(scalars)
            if state.log_history:
                state.log_history[-1].update(scalars)

    @never_fail
    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.release_model()
        self.finish()

    def _turn(self, control: TrainerControl) -> None:
        if (control.should_evaluate or control.should_save) and (energy := self.running):
            energy.turn_to_other()

    def release_model(self) -> None:
        end_watching, self._end_watching, self._model = self._end_watching, None, None
        if end_watching is not None:
            end_watching()


EnergyCallback = TransformersEnergyCallback


def _move_before_loggers(callback: TrainerCallback) -> None:
    """Move a callback to where it sees logs before the trainer's loggers do.

    A trainer calls its loggers before the callbacks of users, who cannot change that: the handler
    that calls us is only known from the stack. Behind the default flow, which decides about
    evaluation and checkpoints.
    """
    for handler in _list_callers():
        if isinstance(handler, CallbackHandler) and callback in handler.callbacks:
            handler.callbacks.remove(callback)
            kinds = [isinstance(one, DefaultFlowCallback) for one in handler.callbacks]
            handler.callbacks.insert(kinds.index(True) + 1 if any(kinds) else 0, callback)
            return
    LOGGER.warning("Energies do not reach the trainer's loggers: its callbacks were not found.")


def _find_called_module(model: Any) -> Any:
    """Return what the trainer calls: its model, or the wrapper in which it compiled the model."""
    for trainer in _list_callers():
        if isinstance(trainer, Trainer):
            outer = trainer.model_wrapped
            return outer if is_compiled(outer) else model
    return model


def _list_callers() -> Iterator[Any]:
    """Yield the objects whose methods are being called, the innermost first."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        yield frame.f_locals.get("self")
