"""Define a network of the benchmark, and measure its step: the truth.

The training loop is a user's, in plain PyTorch, not Joulecast's runtime; only the meter is
Joulecast's: the GPU's energy counter, read between its updates.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joulecast.meters import Meter

Json = dict[str, Any]

LossFunction = Callable[[Any], Tensor]

CROSS_ENTROPY = "cross_entropy"
"""Loss of logits with the classes on their last axis."""


@dataclass(frozen=True)
class TrainingExample:
    """What a user has before training.

    Attributes:
        inputs: What the module is called on: a tensor, a tuple, or a dict of tensors.
        loss: ``cross_entropy`` (classes on the last axis), or a function of the module's output.
    """

    module: nn.Module
    inputs: Any
    loss: str | LossFunction = CROSS_ENTROPY


@dataclass(frozen=True)
class BenchmarkNetwork:
    """A network of a table and how it is trained.

    Attributes:
        make: Builds the example for a batch size, on PyTorch's current default device.
        library: Package besides PyTorch that it needs; empty if none.
        tiny_batch: Batch size of a dry run.
    """

    name: str
    domain: str
    make: Callable[[int], TrainingExample]
    batch: int
    precision: str
    optimizer: str
    library: str = ""
    tiny_batch: int = 2

    @property
    def is_available(self) -> bool:
        """Whether the package that it needs is installed."""
        return not self.library or importlib.util.find_spec(self.library) is not None

    def build(self, device: str = "cpu", tiny: bool = False) -> TrainingExample:
        """Build the example on a device, always with the same weights and values."""
        torch.manual_seed(0)
        with torch.device(device):
            return self.make(self.tiny_batch if tiny else self.batch)


def take_loss(output: Any) -> Tensor:
    """Return the loss that a module of the transformers library computes from its labels."""
    loss: Tensor = output.loss
    return loss


def count_trainable(module: nn.Module) -> int:
    """Return the number of parameters that train."""
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)


# Weights hardly change: trained again and again on one batch, units die and power falls.
LEARNING_RATE = 1e-6
# Steps of a window may be faster than those of the warm-up.
WINDOW_MARGIN = 1.15


@dataclass(frozen=True)
class TruthRules:
    """How long is measured, and when again.

    Attributes:
        windows: Windows that are taken together.
        largest_spread_share: Take more windows if they differ by more than this.
        most_windows: Take no more than this.
    """

    warmup_steps: int = 5
    warmup_s: float = 0.5
    window_s: float = 1.1
    windows: int = 3
    largest_spread_share: float = 0.03
    most_windows: int = 9
    pause_s: float = 2.0
    idle_s: float = 1.0


TINY = TruthRules(
    warmup_steps=1, warmup_s=0.0, window_s=0.0, windows=1, most_windows=1, pause_s=0.0, idle_s=0.0
)
"""For a dry run."""


def measure_truth(
    entry: BenchmarkNetwork, on: str, meter: Meter, rules: TruthRules, tiny: bool = False
) -> Json:
    """Return energy and duration of a step, with all windows.

    Args:
        entry: The network.
        on: Device, such as ``cuda:0``.
        meter: An open meter of this device.
        rules: How long is measured.
        tiny: Use the small batch of a dry run.
    """
    time.sleep(rules.idle_s)
    is_cuda = on.startswith("cuda")
    if is_cuda:
        torch.cuda.init()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    set_precision(entry.precision)
    example = entry.build(on, tiny)
    step = make_step(example, entry, on)
    count = warm_up(step, on, rules)
    windows: list[Json] = []
    while len(windows) < rules.most_windows and needs_more(windows, rules):
        if windows:
            time.sleep(rules.pause_s)
            warm_up(step, on, rules)
        windows += [measure_window(step, count, on, meter) for _ in range(rules.windows)]
    loss = float(step())
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss} after training: the network diverged")
    return {
        **summarize(windows),
        "windows": windows,
        "steps_per_window": count,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if is_cuda else None,
        "trainable": count_trainable(example.module),
        "loss": loss,
        "meter": meter.name,
        "provenance": meter.provenance,
    }


def set_precision(precision: str) -> None:
    """Set PyTorch's switches for TF32: on, off, or under autocast the defaults."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def make_step(example: TrainingExample, entry: BenchmarkNetwork, on: str) -> Callable[[], Tensor]:
    """Return a function that trains one step and returns its loss."""
    net, inputs = example.module.train(), example.inputs
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    optimizer = make_optimizer(entry.optimizer, weights, on)
    compute_loss = example.loss if callable(example.loss) else make_cross_entropy()
    device_type = torch.device(on).type
    half = torch.autocast(device_type, dtype=torch.bfloat16)
    context = half if entry.precision == "bf16" else nullcontext()

    def step() -> Tensor:
        optimizer.zero_grad()
        with context:
            if isinstance(inputs, dict):
                output = net(**inputs)
            else:
                output = net(*inputs) if isinstance(inputs, tuple) else net(inputs)
            loss: Tensor = compute_loss(output)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_optimizer(name: str, weights: list[Any], on: str) -> torch.optim.Optimizer:
    """Return the optimizer as people use it."""
    if name == "sgd":
        return torch.optim.SGD(weights, lr=LEARNING_RATE, momentum=0.9)
    if name == "adam":
        return torch.optim.Adam(weights, lr=LEARNING_RATE)
    return torch.optim.AdamW(weights, lr=LEARNING_RATE, fused=on.startswith("cuda"))


def make_cross_entropy() -> Callable[[Tensor], Tensor]:
    """Return the cross-entropy against labels that are drawn at the first call."""
    labels: list[Tensor] = []

    def compute(logits: Tensor) -> Tensor:
        flat = logits.reshape(-1, logits.shape[-1])
        if not labels:
            labels.append(torch.randint(0, flat.shape[1], (len(flat),), device=flat.device))
        return F.cross_entropy(flat, labels[0])

    return compute


def synchronize(on: str) -> None:
    """Wait until the device has finished."""
    if on.startswith("cuda"):
        torch.cuda.synchronize()


def warm_up(step: Callable[[], Tensor], on: str, rules: TruthRules) -> int:
    """Run steps until the device is warm; return how many fill a window."""
    # The first steps choose kernels and allocate memory.
    for _ in range(rules.warmup_steps):
        step()
    synchronize(on)
    started_s, steps = time.perf_counter(), 0
    while not steps or time.perf_counter() - started_s < rules.warmup_s:
        step()
        steps += 1
    synchronize(on)
    step_s = (time.perf_counter() - started_s) / steps
    return max(1, math.ceil(WINDOW_MARGIN * rules.window_s / step_s))


def measure_window(step: Callable[[], Tensor], count: int, on: str, meter: Meter) -> Json:
    """Measure steps that follow each other without waiting."""
    synchronize(on)
    meter.begin()
    started_s = time.perf_counter()
    for _ in range(count):
        step()
    synchronize(on)
    step_s = (time.perf_counter() - started_s) / count
    reading = meter.end()
    power_w = reading.energy_j / reading.duration_s
    faults = list(reading.faults)
    return {"energy_j": power_w * step_s, "duration_s": step_s, "faults": faults}


def needs_more(windows: list[Json], rules: TruthRules) -> bool:
    """Return whether windows are missing, faulty, or differ too much."""
    good = [one["energy_j"] for one in windows if not one["faults"]]
    if len(good) < rules.windows:
        return True
    return (max(good) - min(good)) / median(good) > rules.largest_spread_share


def summarize(windows: list[Json]) -> Json:
    """Return medians and spreads of the windows without faults, or of all if there are none."""
    good = [one for one in windows if not one["faults"]] or windows
    energy_j = [one["energy_j"] for one in good]
    duration_s = [one["duration_s"] for one in good]
    return {
        "energy_j": median(energy_j),
        "energy_spread_share": (max(energy_j) - min(energy_j)) / median(energy_j),
        "duration_s": median(duration_s),
        "duration_spread_share": (max(duration_s) - min(duration_s)) / median(duration_s),
        "power_w": median(e / s for e, s in zip(energy_j, duration_s, strict=True)),
    }
