"""The MNN runtime on this machine's processor: turn a Trial into a Step that runs again and again.

MNN builds a graph of forward, loss, gradients and update for every step, and computes it at once:
backward and update have no separate run. It fails silently where it cannot train, so every step is
checked: two runs have to succeed, give a finite loss and change every weight.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from math import prod
from typing import Any

from joulecast.mnn.networks import (
    ENGINE,
    NN,
    OPTIM,
    MnnNetwork,
    Var,
    draw_uniform,
    make_indices,
    make_scalar,
)
from joulecast.operators.building import needs_input_gradient
from joulecast.operators.setup_checks import (
    count_threads,
    raise_closed,
    refuse_int8,
    refuse_processor,
    refuse_trial,
)
from joulecast.records import Device, Network, Setup, Trial
from joulecast.records.runtime import Step
from joulecast.system.errors import InputError, NotTrainingError, arg

_LEARNING_RATES = {"sgd": 0.01, "adam": 1e-3, "adamw": 1e-3}
_ADAMW_DECAY = 0.01
# Learning rate while steps are measured, as a share of the usual one: weights stay nearly constant.
_MEASURED_LEARNING_RATE_SHARE = 1e-4
_MAX_SEEDS = 5
# A uniform distribution between plus and minus this has variance 1.
_UNIT_BOUND = 3.0**0.5


class MnnRuntime:
    """MNN on a processor: see ``records.runtime.Runtime``."""

    modes: tuple[str, ...] = ("eager",)

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = f"mnn-{version('MNN')}"

    def prepare(self, trial: Trial) -> MnnStep:
        """Build a trial's network and return its checked step."""
        setup = trial.setup
        refuse_int8(setup, "MNN")
        refuse_processor(setup, "MNN")
        if setup.precision != "fp32":
            verb = "trains" if setup.phase == "train" else "runs"
            raise InputError(f"MNN {verb} in fp32 only, not in {setup.precision}: give fp32")
        if setup.loss == "own":
            raise InputError(
                f"a loss of your own needs PyTorch: give {arg('on', 'cpu')}, or cross_entropy"
            )
        # MNN would end the process where a trial does not fit.
        refuse_trial(trial, self.device, "MNN")
        seed = int(trial.key[:6], 16)
        # A narrow network may start with a dead ReLU.
        for attempt in range(_MAX_SEEDS - 1):
            with suppress(NotTrainingError):
                return _prepare_seeded(trial, seed + 1000 * attempt)
        return _prepare_seeded(trial, seed + 1000 * (_MAX_SEEDS - 1))


@dataclass
class MnnReplica:
    """A network with its own batch and loss."""

    net: MnnNetwork
    inputs: Callable[[], Var]
    loss: Callable[[Var], Var]


def _prepare_seeded(trial: Trial, seed: int) -> MnnStep:
    replicas = []
    for first in (seed + 100_000 * copy for copy in range(trial.execution.copies)):
        net = MnnNetwork(trial.network, first)
        inputs = _draw_inputs(trial.network, trial.setup, net, first)
        replicas.append(MnnReplica(net, inputs, _make_loss(trial, net.output_shape, first)))
    return MnnStep(replicas, trial)


def _draw_inputs(network: Network, setup: Setup, net: MnnNetwork, seed: int) -> Callable[[], Var]:
    """Return a function that gives the batch, as part of the graph of a step."""
    shape = [setup.batch, *network.input.shape]
    if network.input.vocabulary:
        indices = _draw_indices(network.input.vocabulary, shape, seed)
        return lambda: indices
    batch = draw_uniform(shape, _UNIT_BOUND, seed)
    if setup.phase != "train" or not needs_input_gradient(network):
        return lambda: batch
    # MNN computes only gradients that a weight needs. The weight of one number that is added to
    # the batch makes it compute that of the batch, at the cost of a pass over it.
    net.weights.begin_layer("input", True)
    offset = net.weights.fill("offset", [1] * len(shape), 0.0)
    return lambda: batch + offset


def _draw_indices(limit: int, shape: list[int], seed: int) -> Var:
    draw = random.Random(seed)
    return make_indices([draw.randrange(limit) for _ in range(prod(shape))], shape)


def _make_loss(trial: Trial, output_shape: tuple[int, ...], seed: int) -> Callable[[Var], Var]:
    """Return the loss, or a product with random numbers: its gradient is those numbers."""
    setup, elements = trial.setup, trial.setup.batch * prod(output_shape)
    row = [1, elements]
    if trial.execution.upstream == "random":
        upstream = draw_uniform(row, (3.0 / elements) ** 0.5, seed + 1)
        return lambda out: ENGINE.reduce_sum(ENGINE.reshape(out, row) * upstream, [1], False)
    if setup.loss == "mse":
        values, mean = draw_uniform(row, _UNIT_BOUND, seed + 1), make_scalar(1.0 / elements)
        return lambda out: NN.loss.mse(ENGINE.reshape(out, row), values) * mean
    classes = output_shape[-1] if output_shape else 1
    rows = elements // classes
    targets = ENGINE.one_hot(_draw_indices(classes, [rows], seed), classes, 1.0, 0.0, -1)
    targets.fix_as_const()
    return lambda out: NN.loss.cross_entropy(
        ENGINE.softmax(ENGINE.reshape(out, [rows, classes]), -1), targets
    )


class MnnStep(Step):
    """A step of one or more networks that has been checked: see ``records.runtime.Step``.

    Raises:
        NotTrainingError: It does not train; with the reason and the name of the weight.
    """

    def __init__(self, replicas: list[MnnReplica], trial: Trial) -> None:
        setup, execution = trial.setup, trial.execution
        self._replicas, self._threads = replicas, count_threads(setup)
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
        self._check()

    def run(self, count: int) -> None:
        """Run ``count`` steps; MNN returns when they are finished."""
        ENGINE.set_thread_number(self._threads)
        for _ in range(count):
            self._run_once()

    def close(self) -> None:
        """Release all variables."""
        self._replicas, self._weights, self._optimizer = [], {}, None
        self._run_once = raise_closed

    def _check(self) -> None:
        """Run two whole steps and reject a step that does not train."""
        ENGINE.set_thread_number(self._threads)
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
        self._optimizer.learning_rate *= _MEASURED_LEARNING_RATE_SHARE

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
        losses = [one.loss(one.net.run(one.inputs())) for one in self._replicas]
        return sum(losses[1:], losses[0])

    def _decay_weights(self) -> None:
        """Shrink every weight, as AdamW does before its update: MNN has only Adam."""
        share = make_scalar(1.0 - self._optimizer.learning_rate * self._decay)
        for weight in self._weights.values():
            smaller = weight * share
            smaller.fix_as_trainable()
            weight.replace(smaller)


def _make_optimizer(replicas: list[MnnReplica], setup: Setup) -> Any:
    module = NN.Module()
    module._register_submodules([replica.net.weights.module for replica in replicas])
    module.train(True)
    rate = _LEARNING_RATES[setup.optimizer]
    if setup.optimizer == "sgd":
        return OPTIM.SGD(module, rate, 0.9)
    return OPTIM.ADAM(module, rate)
