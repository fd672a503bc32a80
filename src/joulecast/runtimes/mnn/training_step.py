"""Run training steps of an MNN network again and again on one batch.

MNN builds a graph of forward, loss, gradients and update for every step, and computes it at once:
backward and update have no separate run.

MNN does not say that something cannot be trained. ``prepare_step`` therefore checks that two steps
succeed, give a finite loss and change every weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError, NotTrainingError
from joulecast.records import Execution, Setup
from joulecast.runtimes.mnn.build import MnnNetwork
from joulecast.runtimes.mnn.engine import NN, OPTIM, Var, make_scalar, set_threads

RUNNABLE_STAGES = ("step", "forward")

_LEARNING_RATES = {"sgd": 0.01, "adam": 1e-3, "adamw": 1e-3}
_ADAMW_DECAY = 0.01
# Learning rate while steps are measured, as a share of the usual one: weights stay nearly constant.
_MEASURED_LEARNING_RATE_SHARE = 1e-4


@dataclass
class MnnReplica:
    """A network with its own batch and loss."""

    net: MnnNetwork
    inputs: Callable[[], Var]
    loss: Callable[[Var], Var]


def prepare_step(
    replicas: list[MnnReplica], setup: Setup, execution: Execution, threads: int
) -> MnnStep:
    """Return a checked step, ready to be repeated.

    Raises:
        InputError: MNN cannot run the stage or mode.
        NotTrainingError: The step does not train.
    """
    if execution.mode != "eager":
        raise InputError(f"MNN cannot run the mode {execution.mode}: use eager")
    if execution.stage not in RUNNABLE_STAGES:
        raise InputError(
            f"MNN cannot run the stage {execution.stage} alone: measure "
            f"{' or '.join(RUNNABLE_STAGES)}, or choose an estimator that does"
        )
    step = MnnStep(replicas, setup, execution, threads)
    step.check()
    return step


class MnnStep:
    """A step of one or more networks: see ``runtimes.base.Step``."""

    def __init__(
        self, replicas: list[MnnReplica], setup: Setup, execution: Execution, threads: int
    ) -> None:
        self._replicas = replicas
        self._threads = threads
        self._weights = {
            f"{number}.{name}": weight
            for number, replica in enumerate(replicas)
            for name, weight in replica.net.weights.trained.items()
        }
        self._is_training = setup.phase == "train" and bool(self._weights)
        if setup.phase == "train" and not self._weights and execution.upstream == "loss":
            raise NotTrainingError("no weight requires a gradient: there is nothing to train")
        self._optimizer: Any = _make_optimizer(replicas, setup) if self._is_training else None
        self._decay = _ADAMW_DECAY if setup.optimizer == "adamw" else 0.0
        is_whole = self._is_training and execution.stage == "step"
        self._run_once: Callable[[], Any] = self._step if is_whole else self._infer
        if self._is_training and execution.stage == "forward":
            self._run_once = self._forward

    # -- the interface of a Step -----------------------------------------------------------

    def run(self, count: int) -> None:
        """Run ``count`` steps; MNN returns when they are finished."""
        set_threads(self._threads)
        for _ in range(count):
            self._run_once()

    def wait(self) -> None:
        """Return at once: steps are finished when ``run`` returns."""

    def peak_memory_bytes(self) -> int:
        """Return 0: MNN does not tell."""
        return 0

    def close(self) -> None:
        """Release all variables."""
        self._replicas, self._weights, self._optimizer = [], {}, None
        self._run_once = _raise_closed

    # -- checks ----------------------------------------------------------------------------

    def check(self) -> None:
        """Run two whole steps and reject a step that does not train.

        Raises:
            NotTrainingError: With the reason and the name of the weight.
        """
        set_threads(self._threads)
        for replica in self._replicas:
            replica.net.check_shapes(replica.inputs())
        if not self._is_training:
            self._infer()
            return
        before = {name: weight.read().copy() for name, weight in self._weights.items()}
        for _ in range(2):
            if not self._step():
                raise NotTrainingError("MNN finds no gradient of the loss: not measured")
        loss = float(self._make_loss().read().sum())
        if not math.isfinite(loss):
            raise NotTrainingError(f"the loss is {loss} after two steps: not measured")
        self._check_weights_changed(before)
        self._optimizer.learning_rate *= _MEASURED_LEARNING_RATE_SHARE

    def _check_weights_changed(self, before: dict[str, Any]) -> None:
        changed = {
            name for name, weight in self._weights.items() if (weight.read() != before[name]).any()
        }
        changed_layers = {name.rpartition(".")[0] for name in changed}
        for name in self._weights.keys() - changed:
            layer, _, weight = name.rpartition(".")
            # A bias before a norm does not affect the output: its gradient is zero up to rounding.
            if not (weight.startswith("bias") and layer in changed_layers):
                raise NotTrainingError(
                    f"weight {name.partition('.')[2]} did not change in two steps of MNN: not "
                    "measured"
                )

    # -- stages ----------------------------------------------------------------------------

    def _infer(self) -> None:
        for replica in self._replicas:
            replica.net.run(replica.inputs()).read()

    def _forward(self) -> None:
        self._make_loss().read()

    def _step(self) -> bool:
        if self._decay:
            self._decay_weights()
        return bool(self._optimizer.step(self._make_loss()))

    def _make_loss(self) -> Var:
        """Return the sum of the losses, whose gradients are those of each network alone."""
        total = None
        for replica in self._replicas:
            loss = replica.loss(replica.net.run(replica.inputs()))
            total = loss if total is None else total + loss
        return total

    def _decay_weights(self) -> None:
        """Shrink every weight, as AdamW does before its update: MNN has only Adam."""
        share = make_scalar(1.0 - self._optimizer.learning_rate * self._decay)
        for weight in self._weights.values():
            smaller = weight * share
            smaller.fix_as_trainable()
            weight.replace(smaller)


def _raise_closed() -> None:
    raise InputError("this step is closed: prepare it again")


def _make_optimizer(replicas: list[MnnReplica], setup: Setup) -> Any:
    module = NN.Module()
    module._register_submodules([replica.net.weights.module for replica in replicas])
    module.train(True)
    rate = _LEARNING_RATES[setup.optimizer]
    if setup.optimizer == "sgd":
        return OPTIM.SGD(module, rate, 0.9)
    return OPTIM.ADAM(module, rate)
