"""The PyTorch runtime on one device: turn a Trial, or a user's module, into a Step.

Weights and batches are drawn from a seed that belongs to the trial, so that two runs build the same
network. A narrow network may start with a dead ReLU: other seeds are tried before the trial is
rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from joulecast.errors import (
    InputError,
    JoulecastError,
    NetError,
    NotTrainingError,
    OutOfMemoryError,
)
from joulecast.records import MODES, Device, Execution, Network, Setup, Trial
from joulecast.runtimes.setup_checks import refuse_cuda_graphs, refuse_int8, refuse_processor
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.inputs import format_input
from joulecast.runtimes.torch.losses import LossFunction, make_loss
from joulecast.runtimes.torch.training_step import (
    HALF_DTYPES,
    CompiledStep,
    Replica,
    TorchStep,
    apply_settings,
    call_net,
    compile_replicas,
    convert_floats,
    explain_compile_errors,
    is_out_of_memory,
    prepare_step,
)
from joulecast.runtimes.wiring import needs_input_gradient
from joulecast.user_errors import describe_user_error

_MAX_SEEDS = 5


class TorchRuntime:
    """PyTorch on one device: see ``runtimes.base.Runtime``.

    Args:
        on: ``cpu``, ``cuda`` or ``cuda:N``.
        device: Name and properties of the device, stored with every observation.
    """

    def __init__(self, on: str, device: Device) -> None:
        self.torch_device = find_torch_device(on)
        self.device = device
        self.name = "torch-" + torch.__version__.split("+")[0]
        self.modes: tuple[str, ...] = MODES if self.torch_device.type == "cuda" else ("eager",)

    def prepare(self, trial: Trial) -> TorchStep | CompiledStep:
        """Build a trial's network, compile it if the setup says so, and return its checked step."""
        self._check_setup(trial.setup)
        if not trial.setup.compiled:
            return self._prepare_any_seed(trial)
        CompiledStep.forget_compiled()
        with explain_compile_errors(self.torch_device):
            return CompiledStep(self._prepare_any_seed(trial))

    def _prepare_any_seed(self, trial: Trial) -> TorchStep:
        seed = int(trial.key[:8], 16)
        for attempt in range(_MAX_SEEDS):
            try:
                return self._prepare_seeded(trial, seed + attempt)
            except NotTrainingError:
                if attempt == _MAX_SEEDS - 1:
                    raise
        raise AssertionError("unreachable")

    def prepare_net(
        self,
        net: nn.Module,
        inputs: Any,
        loss: LossFunction | None,
        setup: Setup,
        execution: Execution = Execution(),
    ) -> OwnNetStep | CompiledStep:
        """Return a checked step of a user's module, whose weights the step will change."""
        self._check_setup(setup)
        if setup.compiled:
            CompiledStep.forget_compiled()
        generator = torch.Generator().manual_seed(0)
        replica = self._make_replica(net, inputs, loss, setup, generator)
        with _one_line_errors(self.torch_device):
            replicas = _compile_if_asked([replica], setup)
            step = OwnNetStep(prepare_step(replicas, setup, execution, self.torch_device))
        return CompiledStep(step) if setup.compiled else step

    def _check_setup(self, setup: Setup) -> None:
        refuse_int8(setup, "PyTorch")
        refuse_processor(setup, "PyTorch")
        if self.torch_device.type != "cuda":
            refuse_cuda_graphs(setup, f"PyTorch on {self.torch_device}")
        if setup.precision == "tf32" and self.torch_device.type != "cuda":
            raise InputError("tf32 is a number format of NVIDIA GPUs: give fp32 on a processor")

    def _prepare_seeded(self, trial: Trial, seed: int) -> TorchStep:
        # Drawn on the device: drawing a large batch on the CPU takes longer than measuring it.
        device = self.torch_device
        generator = torch.Generator(device).manual_seed(seed)
        replicas: list[Replica] = []
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for _ in range(trial.execution.copies):
                with _one_line_errors(device), device:
                    net = build_net(trial.network)
                    inputs = draw_inputs(trial.network, trial.setup, generator)
                replicas.append(self._make_replica(net, inputs, None, trial.setup, generator))
        replicas = _compile_if_asked(replicas, trial.setup)
        return prepare_step(replicas, trial.setup, trial.execution, device)

    def _make_replica(
        self,
        net: nn.Module,
        inputs: Any,
        loss: LossFunction | None,
        setup: Setup,
        generator: torch.Generator,
    ) -> Replica:
        with _one_line_errors(self.torch_device):
            net = net.to(self.torch_device).train(setup.phase == "train")
            net = convert_floats(net, setup)
            inputs = convert_floats(move_inputs(inputs, self.torch_device), setup)
            if loss is None and setup.phase == "train":
                with torch.no_grad(), apply_settings(setup, self.torch_device):
                    loss = make_loss(setup, call_net(net, inputs), generator)
        return Replica(net, inputs, loss)


class OwnNetStep:
    """A step of a user's module, whose errors name a line of the user's code."""

    def __init__(self, step: TorchStep) -> None:
        self._step = step

    def run(self, count: int) -> None:
        """Issue ``count`` steps without waiting for them."""
        with _one_line_errors(self._step.device):
            self._step.run(count)

    def wait(self) -> None:
        """Wait until the device has finished."""
        with _one_line_errors(self._step.device):
            self._step.wait()

    def peak_memory_bytes(self) -> int:
        """Return the peak of allocated device memory; 0 where it is unknown."""
        return self._step.peak_memory_bytes()

    def close(self) -> None:
        """Release all tensors."""
        self._step.close()


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
    if isinstance(inputs, torch.Tensor):
        moved = inputs.detach().to(device)
        return moved.requires_grad_(inputs.requires_grad) if inputs.requires_grad else moved
    if isinstance(inputs, dict):
        return {key: move_inputs(value, device) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(move_inputs(value, device) for value in inputs)
    return inputs


def _compile_if_asked(replicas: list[Replica], setup: Setup) -> list[Replica]:
    return compile_replicas(replicas, setup) if setup.compiled else replicas


@contextmanager
def _one_line_errors(device: torch.device) -> Iterator[None]:
    """Raise one line that explains why a module cannot be built, called or trained on a device."""
    try:
        yield
    except JoulecastError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"the network does not fit into the memory of {device}: use a smaller batch or "
                "network"
            ) from error
        raise NetError(f"the step fails on {device}: {describe_user_error(error)}") from error
