"""Compile the modules of a step with ``torch.compile``, so that operators fuse.

A module is compiled when its step is first run, before anything is measured. Optimizers and losses
are not compiled. What was compiled is forgotten when no step is left: PyTorch would otherwise give
up after a few networks, which share the code of ``BuiltNet.forward``, and run them eagerly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from joulecast.errors import JoulecastError, NetError
from joulecast.records import Setup
from joulecast.runtimes.base import Step
from joulecast.runtimes.torch.training_step import Replica

# Compiling in this process leaves none that could disturb the measurement.
_OPTIONS: dict[str, str | int | bool] = {"compile_threads": 1}
_LONGEST_MESSAGE = 300


class CompiledStep:
    """A step of compiled modules, which are forgotten after the last one is closed."""

    _open_count = 0

    def __init__(self, step: Step) -> None:
        self._step: Step | None = step
        CompiledStep._open_count += 1

    def run(self, count: int) -> None:
        """Issue ``count`` steps without waiting for them."""
        self._get().run(count)

    def wait(self) -> None:
        """Wait until the device has finished."""
        self._get().wait()

    def peak_memory_bytes(self) -> int:
        """Return the peak of allocated device memory; 0 where it is unknown."""
        return self._get().peak_memory_bytes()

    def close(self) -> None:
        """Release all tensors, and what was compiled if no other step needs it."""
        if self._step is None:
            return
        self._step.close()
        self._step = None
        CompiledStep._open_count -= 1
        self.forget_compiled()

    @classmethod
    def forget_compiled(cls) -> None:
        """Forget all that was compiled in this process, unless a step needs it."""
        if not cls._open_count:
            torch.compiler.reset()

    def _get(self) -> Step:
        if self._step is None:
            raise NetError("this step is closed: prepare it again")
        return self._step


def compile_replicas(replicas: list[Replica], setup: Setup) -> list[Replica]:
    """Return replicas that are compiled when they are first called.

    In inference several are compiled as one module: each call of a compiled module takes time on
    the host, which a network pays once.
    """
    if setup.phase == "train" or len(replicas) == 1:
        return [replace(one, net=compile_module(one.net)) for one in replicas]
    together = ModulesTogether(one.net for one in replicas)
    return [Replica(compile_module(together), tuple(one.inputs for one in replicas), None)]


class ModulesTogether(nn.Module):
    """Modules that are called one after another, each on its own input."""

    def __init__(self, nets: Iterable[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [net(x) for net, x in zip(self.nets, inputs, strict=True)]


def compile_module(net: nn.Module) -> nn.Module:
    """Return a module that is compiled when it is first called."""
    return cast(nn.Module, torch.compile(net, dynamic=False, options=dict(_OPTIONS)))


@contextmanager
def explain_compile_errors(device: torch.device) -> Iterator[None]:
    """Raise one line that says why a module cannot be compiled for a device."""
    try:
        yield
    except JoulecastError:
        raise
    except RuntimeError as error:
        # What follows explains how to debug PyTorch.
        text = " ".join(str(error).split()).partition(" Set TORCHDYNAMO")[0][:_LONGEST_MESSAGE]
        advice = "run it without --compile"
        if "compiler" in text.lower() and device.type == "cpu":
            advice = "install g++, or name a C++ compiler in CXX"
        raise NetError(f"torch.compile fails on {device} ({text}): {advice}") from error
