"""The MNN runtime on this machine's processor: turn a Trial into a Step."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib.metadata import version
from math import prod

from joulecast.errors import InputError, NotTrainingError, OutOfMemoryError
from joulecast.kinds import peak_memory
from joulecast.records import Device, Network, Setup, Trial
from joulecast.runtimes.mnn.build import MnnNetwork
from joulecast.runtimes.mnn.engine import (
    ENGINE,
    NN,
    Var,
    draw_uniform,
    make_indices,
    make_scalar,
)
from joulecast.runtimes.mnn.training_step import MnnReplica, MnnStep, prepare_step
from joulecast.runtimes.setup_checks import (
    refuse_cuda_graphs,
    refuse_int8,
    refuse_processor,
    refuse_torch_options,
)
from joulecast.runtimes.thread_counts import count_threads
from joulecast.runtimes.wiring import needs_input_gradient

_MAX_SEEDS = 5
# A uniform distribution between plus and minus this has variance 1.
_UNIT_BOUND = 3.0**0.5


class MnnRuntime:
    """MNN on a processor: see ``runtimes.base.Runtime``.

    Args:
        device: Name and properties of the processor, stored with every observation.
    """

    modes: tuple[str, ...] = ("eager",)

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = f"mnn-{version('MNN')}"

    def prepare(self, trial: Trial) -> MnnStep:
        """Build a trial's network and return its checked step."""
        _check_setup(trial.setup)
        refuse_torch_options(trial.setup, trial.network, "MNN")
        self._check_memory(trial)
        seed = int(trial.key[:6], 16)
        for attempt in range(_MAX_SEEDS):
            try:
                return _prepare_seeded(trial, seed + 1000 * attempt)
            except NotTrainingError:
                # A narrow network may start with a dead ReLU.
                if attempt == _MAX_SEEDS - 1:
                    raise
        raise AssertionError("unreachable")

    def _check_memory(self, trial: Trial) -> None:
        """Refuse a trial that does not fit: MNN would end the process."""
        needed = peak_memory(trial.network, trial.setup) * trial.execution.copies
        limit = self.device.memory_bytes
        if limit and needed > limit:
            raise OutOfMemoryError(
                f"the step needs {needed / 2**20:.0f} MiB but {self.device.name} has "
                f"{limit / 2**20:.0f} MiB: use a smaller batch or a narrower network"
            )


def _check_setup(setup: Setup) -> None:
    refuse_int8(setup, "MNN")
    refuse_processor(setup, "MNN")
    refuse_cuda_graphs(setup, "MNN")
    if setup.precision != "fp32":
        verb = "trains" if setup.phase == "train" else "runs"
        raise InputError(f"MNN {verb} in fp32 only, not in {setup.precision}: give fp32")
    if setup.loss == "own":
        raise InputError("a loss of your own needs PyTorch: use --on cpu, or give cross_entropy")


def _prepare_seeded(trial: Trial, seed: int) -> MnnStep:
    replicas = []
    for copy in range(trial.execution.copies):
        first = seed + 100_000 * copy
        net = MnnNetwork(trial.network, first)
        inputs = _draw_inputs(trial.network, trial.setup, net, first)
        loss = _make_loss(trial, net.output_shape, first)
        replicas.append(MnnReplica(net, inputs, loss))
    threads = count_threads(trial.setup)
    return prepare_step(replicas, trial.setup, trial.execution, threads)


def _draw_inputs(network: Network, setup: Setup, net: MnnNetwork, seed: int) -> Callable[[], Var]:
    """Return a function that gives the batch, as part of the graph of a step."""
    shape = [setup.batch, *network.input.shape]
    if network.input.vocabulary:
        draw = random.Random(seed)
        tokens = [draw.randrange(network.input.vocabulary) for _ in range(prod(shape))]
        indices = make_indices(tokens, shape)
        return lambda: indices
    batch = draw_uniform(shape, _UNIT_BOUND, seed)
    if setup.phase != "train" or not needs_input_gradient(network):
        return lambda: batch
    # MNN computes only gradients that a weight needs. The weight of one number that is added to
    # the batch makes it compute that of the batch, at the cost of a pass over it.
    net.weights.begin_layer("input", True)
    offset = net.weights.fill("offset", [1] * len(shape), 0.0)
    return lambda: batch + offset


def _make_loss(trial: Trial, output_shape: tuple[int, ...], seed: int) -> Callable[[Var], Var]:
    """Return the loss, or a product with random numbers: its gradient is those numbers."""
    setup, elements = trial.setup, trial.setup.batch * prod(output_shape)
    if trial.execution.upstream == "random":
        upstream = draw_uniform([1, elements], (3.0 / elements) ** 0.5, seed + 1)
        return lambda out: ENGINE.reduce_sum(
            ENGINE.reshape(out, [1, elements]) * upstream, [1], False
        )
    if setup.loss == "mse":
        values = draw_uniform([1, elements], _UNIT_BOUND, seed + 1)
        mean = make_scalar(1.0 / elements)
        return lambda out: NN.loss.mse(ENGINE.reshape(out, [1, elements]), values) * mean
    classes = output_shape[-1] if output_shape else 1
    rows = elements // classes
    draw = random.Random(seed)
    labels = make_indices([draw.randrange(classes) for _ in range(rows)], [rows])
    targets = ENGINE.one_hot(labels, classes, 1.0, 0.0, -1)
    targets.fix_as_const()
    return lambda out: NN.loss.cross_entropy(
        ENGINE.softmax(ENGINE.reshape(out, [rows, classes]), -1), targets
    )
