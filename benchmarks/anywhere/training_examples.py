"""Define an entry of the tables: a module, its inputs, its loss, and how it is trained."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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


def take_second(output: Any) -> Tensor:
    """Return the loss of a module that returns its output and its loss."""
    loss: Tensor = output[1]
    return loss


def count_trainable(module: nn.Module) -> int:
    """Return the number of parameters that train."""
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
