"""Refuse setups that a framework cannot run, with one line that says what to do."""

from __future__ import annotations

import os
from typing import NoReturn

from joulecast.operators.cost import peak_memory
from joulecast.records import INT8_PRECISIONS, Device, Network, Setup, Trial
from joulecast.system.errors import InputError, OutOfMemoryError, arg


def refuse_int8(setup: Setup, framework: str) -> None:
    """Raise InputError for 8-bit numbers, which ``framework`` does not compute in."""
    if setup.precision in INT8_PRECISIONS:
        raise InputError(
            f"{framework} does not run {setup.precision} here: give {arg('on', 'onnx:cpu')}, "
            "or fp32"
        )


def refuse_processor(setup: Setup, framework: str) -> None:
    """Raise InputError for a named processor, because its device is chosen by ``on``."""
    if setup.processor:
        raise InputError(
            f"{framework} has no processor {setup.processor!r} to choose: leave {arg('processor')} "
            f"out, and name the device with {arg('on')}"
        )


def refuse_cuda_graphs(setup: Setup, framework: str) -> None:
    """Raise InputError for CUDA graphs, which ``framework`` does not have."""
    if setup.cuda_graphs:
        raise InputError(f"{framework} has no CUDA graphs: leave {arg('cuda_graphs')} out")


def refuse_torch_options(setup: Setup, network: Network, framework: str) -> None:
    """Raise InputError for what only PyTorch does: compile, accumulate gradients, checkpoint."""
    if setup.compiled:
        raise InputError(
            f"{framework} is not compiled by torch.compile: leave {arg('compiled')} out"
        )
    if setup.accumulate != 1:
        raise InputError(
            f"{framework} does not accumulate gradients: leave {arg('accumulate')} out"
        )
    if setup.phase == "train" and any(layer.recomputed for layer in network.layers):
        raise InputError(f"{framework} keeps all activations: leave {arg('checkpoint')} out")


def refuse_trial(trial: Trial, device: Device, framework: str) -> None:
    """Raise an error for a trial that no framework but PyTorch runs, or that does not fit.

    Raises:
        InputError: It is compiled, captured, or a stage that only PyTorch runs alone.
        OutOfMemoryError: It needs more memory than the device has.
    """
    setup, execution = trial.setup, trial.execution
    refuse_cuda_graphs(setup, framework)
    refuse_torch_options(setup, trial.network, framework)
    if execution.mode != "eager":
        raise InputError(f"{framework} cannot run the mode {execution.mode}: use eager")
    if execution.stage not in ("step", "forward"):
        raise InputError(
            f"{framework} cannot run the stage {execution.stage} alone: measure step or forward, "
            "or choose an estimator that does"
        )
    needed = peak_memory(trial.network, setup) * execution.copies
    if device.memory_bytes and needed > device.memory_bytes:
        raise OutOfMemoryError(
            f"the step needs {needed / 2**20:.0f} MiB but {device.name} has "
            f"{device.memory_bytes / 2**20:.0f} MiB: use a smaller batch or a narrower network"
        )


def raise_closed() -> NoReturn:
    """Refuse to run a step that was closed."""
    raise InputError("this step is closed: prepare it again")


def count_threads(setup: Setup) -> int:
    """Return the threads that a setup names, else the processors that this process may use."""
    if setup.threads:
        return setup.threads
    # macOS and Windows do not say which processors a process may use.
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len(os.sched_getaffinity(0))
