"""Small modules that operators are built of, where the framework has none that fits."""

from __future__ import annotations

import math
from typing import Callable, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.records import Op

Shape = Tuple[int, ...]


class PackedSdpa(nn.Module):
    """Attention on queries, keys and values that stand side by side on the last axis."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        self.joulecast_sdpa = Op(op.kind, op.sizes)
        self.heads, self.kv_heads = op.sizes["heads"], op.sizes["kv_heads"]
        self.head_dim = op.sizes["head_dim"]
        self.causal = bool(op.sizes["causal"])
        self.kv_tokens = op.sizes["kv_tokens"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        sizes = [heads * self.head_dim for heads in (self.heads, self.kv_heads, self.kv_heads)]
        query, key, value = x.split(sizes, dim=-1)
        if tokens != self.kv_tokens:
            # Attention to another sequence: its tokens stand in for that one's.
            key, value = (fit_shape(part, (self.kv_tokens, sizes[1])) for part in (key, value))
        query, key, value = (
            part.view(batch, part.shape[1], -1, self.head_dim).transpose(1, 2)
            for part in (query, key, value)
        )
        grouped = self.heads != self.kv_heads
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=grouped
        )
        return out.transpose(1, 2).reshape(batch, tokens, -1)


class Recurrent(nn.Module):
    """A recurrence whose output is its sequence of states."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)[0]
        return out


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x, x, x, need_weights=False)[0]
        return out


class StandIn(nn.Module):
    """As many passes over its input as a function makes that nobody can rebuild.

    What is measured is moved memory, not meaning: a hand-written activation costs what its passes
    cost. A net with such a function is not ``buildable``, but a variant can still show its layer.
    """

    def __init__(self, passes: int, out: Shape) -> None:
        super().__init__()
        self.passes = passes
        self.out = out

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        x = inputs[0]
        for other in inputs[1:]:
            x = x + other
        for _ in range(self.passes - (len(inputs) > 1)):
            x = x * 0.5
        return x if tuple(x.shape[1:]) == self.out else fit_shape(x, self.out)


class SelfProduct(nn.Module):
    """A matrix product of two results, or of one result with itself."""

    def __init__(self, second: Shape) -> None:
        super().__init__()
        self.second = second

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        one = inputs[0]
        two = inputs[1] if len(inputs) > 1 else fit_shape(one, self.second)
        return torch.matmul(one, two)


def fit_shape(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The same elements in another shape, cut or repeated to fit."""
    flat = x.flatten(1)
    wanted = math.prod(shape)
    if wanted > flat.shape[1]:
        flat = flat.repeat(1, -(-wanted // flat.shape[1]))
    return flat[:, :wanted].reshape(x.shape[0], *shape)


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)
