"""Small modules that operators are built of, where the framework has none that fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.records import Op, Sizes
from joulecast.runtimes.torch.memory_format import is_channels_last

Shape = tuple[int, ...]


class PackedSdpa(nn.Module):
    """Attention on queries, keys and values that stand side by side on the last axis."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        self.joulecast_sdpa = Op(op.kind, op.sizes)
        self.heads, self.kv_heads = op.sizes["heads"], op.sizes["kv_heads"]
        self.head_dim = op.sizes["head_dim"]
        self.causal = bool(op.sizes["causal"])
        self.tokens = op.sizes["tokens"]
        self.kv_tokens = op.sizes["kv_tokens"]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = self._take(inputs)
        grouped = self.heads != self.kv_heads
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=grouped
        )
        return out.transpose(1, 2).reshape(out.shape[0], self.tokens, -1)

    def drop_heads(self, count: int) -> None:
        """Attend with fewer heads; whoever feeds it gives that many less."""
        sizes = dict(self.joulecast_sdpa.sizes)
        self.heads = sizes["heads"] = self.heads - count
        self.kv_heads = sizes["kv_heads"] = self.kv_heads - count
        self.joulecast_sdpa = Op(self.joulecast_sdpa.kind, Sizes(sizes))

    def _take(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values by heads, from one input that holds all or from several."""
        sizes = [heads * self.head_dim for heads in (self.heads, self.kv_heads, self.kv_heads)]
        if len(inputs) == 1 and inputs[0].shape[1:] == (self.tokens, sum(sizes)):
            inputs = inputs[0].split(sizes, dim=-1)
        query, key, value = inputs[0], inputs[min(1, len(inputs) - 1)], inputs[-1]
        return (
            self._spread(query, self.tokens, self.heads),
            self._spread(key, self.kv_tokens, self.kv_heads),
            self._spread(value, self.kv_tokens, self.kv_heads),
        )

    def _spread(self, x: torch.Tensor, tokens: int, heads: int) -> torch.Tensor:
        if x.shape[1:] == (heads, tokens, self.head_dim):
            return x
        if x.shape[1:] != (tokens, heads * self.head_dim):
            # Another sequence, or lost views: other elements stand in for those.
            x = fit_shape(x, (tokens, heads * self.head_dim))
        return x.view(x.shape[0], tokens, heads, self.head_dim).transpose(1, 2)


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


class DecomposedRMSNorm(nn.Module):
    """A norm by the root of mean squares in elementary operators, as libraries write it."""

    def __init__(self, width: int, affine: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if affine else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        out = wide.to(x.dtype)
        return out if self.weight is None else self.weight * out


class ElementwisePlaceholder(nn.Module):
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


class NewGELUActivation(nn.Module):
    """GELU by its tanh, spelled out as libraries do: under autocast its power runs in fp32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class QuickGELUActivation(nn.Module):
    """GELU by a sigmoid, spelled out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


# By the names that reading gives them: what the classes are called, here and in the libraries.
DECOMPOSED_ACTIVATIONS = {
    cls.__name__.lower(): cls for cls in (NewGELUActivation, QuickGELUActivation)
}


class ConcatPlaceholder(nn.Module):
    """Joining along an axis that nobody can rebuild: the same elements, copied once."""

    def __init__(self, out: Shape) -> None:
        super().__init__()
        self.out = out

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) == 1:
            return fit_shape(inputs[0].clone(), self.out)
        flat = [x.flatten(1) for x in inputs]
        if sum(x.shape[1] for x in flat) > math.prod(self.out):
            # Only slices of them were joined.
            flat = [x[:, : max(1, math.prod(self.out) // len(flat))] for x in flat]
        flat = list(fit_channels(flat, math.prod(self.out)))
        return torch.cat(flat, dim=1).reshape(-1, *self.out)


class MatrixProduct(nn.Module):
    """A matrix product of two results, or of one result with itself."""

    def __init__(self, second: Shape) -> None:
        super().__init__()
        self.second = second

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        one = inputs[0]
        two = inputs[1] if len(inputs) > 1 else fit_shape(one, self.second)
        return torch.matmul(one, two)


def fit_shape(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The same elements in another shape, cut or repeated to fit.

    They are taken as they lie: a view that was lost on reading copied nothing.
    """
    flat = (x.movedim(1, -1) if is_channels_last(x) else x).flatten(1)
    wanted = math.prod(shape)
    if wanted > flat.shape[1]:
        flat = flat.repeat(1, -(-wanted // flat.shape[1]))
    return flat[:, :wanted].reshape(x.shape[0], *shape)


def fit_channels(inputs: Sequence[torch.Tensor], wanted: int) -> tuple[torch.Tensor, ...]:
    """Inputs that together have as many channels as wanted: a few come once more, or are cut.

    What comes once more gets no gradient: cutting one would cost more than joining it.
    """
    fitted: list[torch.Tensor] = []
    inputs = [x for x in inputs if x.shape[1]]
    for x in itertools.chain(inputs, itertools.cycle([x.detach() for x in inputs])):
        if not wanted:
            break
        fitted.append(x if x.shape[1] <= wanted else x[:, :wanted])
        wanted -= fitted[-1].shape[1]
    return tuple(fitted)


def fit_channels_last(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The same elements as an image that lies channels last."""
    return fit_shape(x, (*shape[1:], shape[0])).movedim(-1, 1)


def take_one_element(x: torch.Tensor, dims: int) -> torch.Tensor:
    """One element a sample, to be broadcast over that many axes."""
    return x.flatten(1)[:, :1].reshape(x.shape[0], *([1] * dims))


class FunctionModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)
