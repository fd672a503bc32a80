"""Losses for networks whose real loss or targets are unknown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from joulecast.records import Setup
from joulecast.system.errors import NetError

LossFunction = Callable[[Any], torch.Tensor]


def make_loss(setup: Setup, output: Any, generator: torch.Generator) -> LossFunction:
    """Return the loss that ``setup`` names, against targets drawn once in the output's shape."""
    logits = first_float_tensor(output)
    if setup.loss == "mse":
        values = torch.randn(logits.shape, generator=generator, device=generator.device)
        values = values.to(logits.device)
        return lambda out: F.mse_loss(first_float_tensor(out).float(), values)
    classes = logits.shape[-1]
    shape = (math.prod(logits.shape[:-1]),)
    labels = torch.randint(0, classes, shape, generator=generator, device=generator.device)
    labels = labels.to(logits.device)
    return lambda out: F.cross_entropy(first_float_tensor(out).reshape(-1, classes).float(), labels)


def mean_square_loss(output: Any) -> torch.Tensor:
    """Return the mean square of the first floating-point tensor of any output."""
    return first_float_tensor(output).float().square().mean()


def cross_entropy_loss(output: Any) -> torch.Tensor:
    """Return the cross-entropy of class 0, with classes on the last axis of the output."""
    logits = first_float_tensor(output)
    flat = logits.reshape(-1, logits.shape[-1])
    targets = torch.zeros(flat.shape[0], dtype=torch.long, device=flat.device)
    return F.cross_entropy(flat.float(), targets)


def first_float_tensor(output: Any) -> torch.Tensor:
    """Return the tensor of a module's output that the loss is computed from.

    Raises:
        NetError: The output contains no floating-point tensor.
    """
    leaves = [getattr(output, "logits", None), getattr(output, "last_hidden_state", None)]
    for leaf in [*leaves, *pytree.tree_leaves(output)]:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf
    raise NetError(
        "forward() returns no floating-point tensor to compute a loss from: return one, or a "
        "structure that contains one"
    )
