"""The PyTorch runtime on one device: turn a Trial, or a user's module, into a Step.

Weights and batches are drawn from a seed that belongs to the trial, so that two runs build the same
network. A narrow network may start with a dead ReLU: other seeds are tried before the trial is
rejected.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from joulecast.operators.building import needs_input_gradient
from joulecast.operators.setup_checks import refuse_cuda_graphs, refuse_int8, refuse_processor
from joulecast.records import MODES, Device, Execution, Network, Setup, Trial
from joulecast.system.errors import InputError, NotTrainingError
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.inputs import call_net, format_input
from joulecast.torch_nets.losses import LossFunction, make_loss
from joulecast.torch_nets.training_step import (
    HALF_DTYPES,
    Replica,
    TorchStep,
    apply_settings,
    compile_replicas,
    convert_floats,
    explain_compile_errors,
    forget_compiled,
    one_line_errors,
    prepare_step,
)

_MAX_SEEDS = 5


class TorchRuntime:
    """PyTorch on one device: see ``records.runtime.Runtime``."""

    def __init__(self, on: str, device: Device) -> None:
        self.torch_device = find_torch_device(on)
        self.device = device
        self.name = "torch-" + torch.__version__.split("+")[0]
        self.modes: tuple[str, ...] = MODES if self.torch_device.type == "cuda" else ("eager",)

    def prepare(self, trial: Trial) -> TorchStep:
        """Build a trial's network, compile it if the setup says so, and return its checked step."""
        self._check_setup(trial.setup)
        seed = int(trial.key[:8], 16)
        compiles = trial.setup.compiled
        with explain_compile_errors(self.torch_device) if compiles else nullcontext():
            for attempt in range(_MAX_SEEDS - 1):
                with suppress(NotTrainingError):
                    return self._prepare_seeded(trial, seed + attempt)
            return self._prepare_seeded(trial, seed + _MAX_SEEDS - 1)

    def prepare_net(
        self,
        net: nn.Module,
        inputs: Any,
        loss: LossFunction | None,
        setup: Setup,
        execution: Execution = Execution(),
    ) -> TorchStep:
        """Return a checked step of a user's module, whose weights the step will change."""
        self._check_setup(setup)
        generator = torch.Generator().manual_seed(0)
        replicas = [self._make_replica(net, inputs, loss, setup, generator)]
        with one_line_errors(self.torch_device):
            if setup.compiled:
                replicas = compile_replicas(replicas, setup)
            return prepare_step(replicas, setup, execution, self.torch_device, is_users_net=True)

    def _check_setup(self, setup: Setup) -> None:
        refuse_int8(setup, "PyTorch")
        refuse_processor(setup, "PyTorch")
        if self.torch_device.type != "cuda":
            refuse_cuda_graphs(setup, f"PyTorch on {self.torch_device}")
        if setup.precision == "tf32" and self.torch_device.type != "cuda":
            raise InputError("tf32 is a number format of NVIDIA GPUs: give fp32 on a processor")
        if setup.compiled:
            forget_compiled()

    def _prepare_seeded(self, trial: Trial, seed: int) -> TorchStep:
        # Drawn on the device: drawing a large batch on the CPU takes longer than measuring it.
        device = self.torch_device
        generator = torch.Generator(device).manual_seed(seed)
        replicas: list[Replica] = []
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for _ in range(trial.execution.copies):
                with one_line_errors(device), device:
                    net = build_net(trial.network)
                    inputs = draw_inputs(trial.network, trial.setup, generator)
                replicas.append(self._make_replica(net, inputs, None, trial.setup, generator))
        if trial.setup.compiled:
            replicas = compile_replicas(replicas, trial.setup)
        return prepare_step(replicas, trial.setup, trial.execution, device)

    def _make_replica(
        self,
        net: nn.Module,
        inputs: Any,
        loss: LossFunction | None,
        setup: Setup,
        generator: torch.Generator,
    ) -> Replica:
        with one_line_errors(self.torch_device):
            net = net.to(self.torch_device).train(setup.phase == "train")
            net = convert_floats(net, setup)
            inputs = convert_floats(move_inputs(inputs, self.torch_device), setup)
            if loss is None and setup.phase == "train":
                with torch.no_grad(), apply_settings(setup, self.torch_device):
                    loss = make_loss(setup, call_net(net, inputs), generator)
        return Replica(net, inputs, loss)


def find_torch_device(on: str) -> torch.device:
    """Return the torch device for ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        InputError: There is no such device.
    """
    if on == "cpu":
        return torch.device("cpu")
    try:
        device = torch.device(on)
    except RuntimeError:
        raise InputError(f"unknown device {on!r}: give cpu or cuda:0") from None
    if device.type != "cuda":
        raise InputError(f"device {on!r} is not supported yet: give cpu or cuda:0")
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise InputError(f"PyTorch sees {count} CUDA devices, so there is no {on}: try --on cpu")
    return torch.device("cuda", device.index or 0)


def draw_inputs(network: Network, setup: Setup, generator: torch.Generator) -> torch.Tensor:
    """Draw a batch: N(0, 1) or tokens, with a gradient if the first layers need one."""
    shape = (setup.batch, *network.input.shape)
    if network.input.vocabulary:
        vocabulary = network.input.vocabulary
        return torch.randint(0, vocabulary, shape, generator=generator, device=generator.device)
    x = torch.randn(shape, generator=generator, device=generator.device)
    if network.input.half:
        x = x.to(HALF_DTYPES.get(setup.precision, x.dtype))
    x = format_input(x, network)
    return x.requires_grad_(needs_input_gradient(network))


def move_inputs(inputs: Any, device: torch.device) -> Any:
    """Return inputs on a device as leaf tensors that keep ``requires_grad``."""

    def move(x: torch.Tensor) -> torch.Tensor:
        return x.detach().to(device).requires_grad_(x.requires_grad)

    return tree_map_only(torch.Tensor, move, inputs)
