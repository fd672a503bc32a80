"""Measure the energy of training steps in a plain PyTorch loop: the truth of the benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from run_networks import RunNetwork
from torch import nn

from joulecast.meters import Meter

Json = dict[str, Any]

# Weights hardly change: trained again and again on one batch, units die and power falls.
_LEARNING_RATE = 1e-6
_WARMUP_STEPS = 6
_WARMUP_S = 1.0
_WINDOW_S = 1.5
_WINDOWS = 3


def measure_steps(entry: RunNetwork, on: str, meter: Meter) -> Json:
    """Return energy and duration of a step, an update of the weights, with all windows."""
    step, _ = make_loop(entry, on)
    started_s = time.perf_counter()
    step()
    _wait(on)
    first_s = time.perf_counter() - started_s
    count = _warm_up(step, on)
    windows = [_measure_window(step, on, meter, count) for _ in range(_WINDOWS)]
    return {
        "energy_j": median(one["energy_j"] for one in windows),
        "duration_s": median(one["duration_s"] for one in windows),
        "issue_s": median(one["issue_s"] for one in windows),
        "first_step_s": first_s,
        "windows": windows,
    }


def make_loop(entry: RunNetwork, on: str) -> tuple[Callable[[], None], nn.Module]:
    """Return a function that trains one step, and the module."""
    torch.manual_seed(0)
    is_tf32 = entry.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    torch.backends.cudnn.allow_tf32 = entry.precision != "fp32"
    net = entry.make().to(on).train()
    inputs = _move(entry.make_inputs(entry.batch), on)
    labels = torch.randint(0, 1000, (entry.batch,), device=on)
    optimizer = _make_optimizer(net, entry, on)
    run: Any = torch.compile(net, dynamic=False) if entry.compiled else net

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(entry.accumulate):
            with _autocast(entry, on):
                if isinstance(inputs, dict):
                    loss = run(**inputs).loss
                else:
                    loss = F.cross_entropy(run(inputs), labels)
            (loss / entry.accumulate).backward()
        optimizer.step()

    return step, net


def _autocast(entry: RunNetwork, on: str) -> Any:
    if entry.precision != "bf16":
        return nullcontext()
    return torch.autocast(on.partition(":")[0], torch.bfloat16)


def _make_optimizer(net: nn.Module, entry: RunNetwork, on: str) -> torch.optim.Optimizer:
    if entry.optimizer == "sgd":
        return torch.optim.SGD(net.parameters(), lr=_LEARNING_RATE, momentum=0.9)
    return torch.optim.AdamW(net.parameters(), lr=_LEARNING_RATE, fused=on.startswith("cuda"))


def _move(inputs: Any, on: str) -> Any:
    if isinstance(inputs, dict):
        return {name: value.to(on) for name, value in inputs.items()}
    return inputs.to(on)


def _wait(on: str) -> None:
    if on.startswith("cuda"):
        torch.cuda.synchronize()


def _warm_up(step: Callable[[], None], on: str) -> int:
    """Run steps until the device is warm; return how many fill a window."""
    started_s, count = time.perf_counter(), 0
    while count < _WARMUP_STEPS or time.perf_counter() - started_s < _WARMUP_S:
        step()
        _wait(on)
        count += 1
    return max(3, round(count * _WINDOW_S / (time.perf_counter() - started_s)))


def _measure_window(step: Callable[[], None], on: str, meter: Meter, count: int) -> Json:
    _wait(on)
    meter.begin()
    started_s = time.perf_counter()
    for _ in range(count):
        step()
    issued_s = time.perf_counter()
    _wait(on)
    step_s = (time.perf_counter() - started_s) / count
    reading = meter.end()
    return {
        "energy_j": reading.energy_j / reading.duration_s * step_s,
        "duration_s": step_s,
        "issue_s": (issued_s - started_s) / count,
        "steps": count,
        "faults": list(reading.faults),
    }
