"""PyTorch on one device, as a runtime: Trial → Step, and a user's own net → Step.

Weights and batches come from a seed that belongs to the trial, so that two runs build the same
thing. A narrow net may be born dead (a ReLU that passes nothing): another seed is tried a few times
before the trial is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.memory_format import format_input
from joulecast.runtimes.torch.training_step import (
    HALF,
    Replica,
    TorchStep,
    apply_settings,
    call_net,
    is_out_of_memory,
    make_loss,
    prepare_step,
)

_SEEDS = 5


class TorchRuntime:
    """See ``runtimes.base.Runtime``.

    Args:
        on: ``cpu``, ``cuda`` or ``cuda:N``.
        device: What the device is called and has; part of every observation.
    """

    def __init__(self, on: str, device: Device) -> None:
        self.torch_device = find_torch_device(on)
        self.device = device
        self.name = "torch-" + torch.__version__.split("+")[0]
        self.modes: tuple[str, ...] = MODES if self.torch_device.type == "cuda" else ("eager",)

    def prepare(self, trial: Trial) -> TorchStep:
        seed = int(trial.key[:8], 16)
        for attempt in range(_SEEDS):
            try:
                return self._prepare_seeded(trial, seed + attempt)
            except NotTrainingError:
                if attempt == _SEEDS - 1:
                    raise
        raise AssertionError("unreachable")

    def prepare_net(
        self,
        net: nn.Module,
        inputs: Any,
        loss: Callable[[Any], torch.Tensor] | None,
        setup: Setup,
        execution: Execution = Execution(),
    ) -> TorchStep:
        """A step of a net that somebody else built. Its weights will train."""
        generator = torch.Generator().manual_seed(0)
        copy = self._place(net, inputs, loss, setup, generator)
        return prepare_step([copy], setup, execution, self.torch_device)

    def _prepare_seeded(self, trial: Trial, seed: int) -> TorchStep:
        # Made where it runs: drawing a large batch on a processor takes longer than measuring it.
        device = self.torch_device
        generator = torch.Generator(device).manual_seed(seed)
        copies: list[Replica] = []
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for _ in range(trial.execution.copies):
                with _explaining(device), device:
                    net = build_net(trial.network)
                    inputs = draw_inputs(trial.network, trial.setup, generator)
                copies.append(self._place(net, inputs, None, trial.setup, generator))
        return prepare_step(copies, trial.setup, trial.execution, device)

    def _place(
        self,
        net: nn.Module,
        inputs: Any,
        loss: Callable[[Any], torch.Tensor] | None,
        setup: Setup,
        generator: torch.Generator,
    ) -> Replica:
        with _explaining(self.torch_device):
            net = net.to(self.torch_device).train(setup.phase == "train")
            inputs = move(inputs, self.torch_device)
            if loss is None:
                with torch.no_grad(), apply_settings(setup, self.torch_device):
                    loss = make_loss(setup, call_net(net, inputs), generator)
        return Replica(net, inputs, loss)


@contextmanager
def _explaining(device: torch.device) -> Iterator[None]:
    """Says in one line why a net cannot be made or called on a device."""
    try:
        yield
    except JoulecastError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"the net does not fit into the memory of {device}: use a smaller batch or net"
            ) from error
        text = " ".join(str(error).split())[:300]
        raise NetError(f"the net's forward fails: {type(error).__name__}: {text}") from error


def find_torch_device(on: str) -> torch.device:
    """The framework's device for ``cpu``, ``cuda`` or ``cuda:N``."""
    if on == "cpu":
        return torch.device("cpu")
    try:
        device = torch.device(on)
    except RuntimeError:
        raise InputError(f"there is no device {on!r}: give cpu or cuda:0") from None
    if device.type != "cuda":
        raise InputError(f"Joulecast does not run on {on!r} yet: give cpu or cuda:0")
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise InputError(f"PyTorch sees {count} CUDA devices, so there is no {on}: try --on cpu")
    return torch.device("cuda", device.index or 0)


def draw_inputs(network: Network, setup: Setup, generator: torch.Generator) -> torch.Tensor:
    """A batch for a network: N(0, 1), or tokens; with a gradient where the first layer needs it."""
    shape = (setup.batch, *network.input.shape)
    if network.input.vocabulary:
        words = network.input.vocabulary
        return torch.randint(0, words, shape, generator=generator, device=generator.device)
    x = torch.randn(shape, generator=generator, device=generator.device)
    if network.input.half:
        x = x.to(HALF.get(setup.precision, x.dtype))
    x = format_input(x, network)
    first = (layer for i, layer in enumerate(network.layers) if max(layer.reads, default=0) > i)
    return x.requires_grad_(any(layer.input_grad for layer in first))


def move(inputs: Any, device: torch.device) -> Any:
    """Inputs on a device, leaf tensors staying leaves that keep their need for a gradient."""
    if isinstance(inputs, torch.Tensor):
        moved = inputs.detach().to(device)
        return moved.requires_grad_(inputs.requires_grad) if inputs.requires_grad else moved
    if isinstance(inputs, dict):
        return {key: move(value, device) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(move(value, device) for value in inputs)
    return inputs
