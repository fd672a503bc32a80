"""Modules for operators that ``torch.nn`` has no module for."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.records import Op, Sizes
from joulecast.runtimes.input_fits import Shape
from joulecast.runtimes.torch.input_adapters import fit_channels, fit_shape


class PackedSdpa(nn.Module):
    """Scaled dot-product attention whose query, key and value are concatenated on the last axis."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        self.op = Op(op.kind, op.sizes)
        self.heads, self.kv_heads = op.sizes["heads"], op.sizes["kv_heads"]
        self.head_dim = op.sizes["head_dim"]
        self.causal = bool(op.sizes["causal"])
        self.tokens = op.sizes["tokens"]
        self.kv_tokens = op.sizes["kv_tokens"]
        self.windows = op.sizes.get("windows", 1)
        self.cache: dict[str, torch.Tensor] = {}

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if self.windows > 1:
            # A window attends only to itself: windows are samples.
            out = self._attend(tuple(self._split_windows(x) for x in inputs))
            return out.reshape(-1, self.windows, self.tokens, out.shape[-1])
        return self._attend(inputs)

    def _attend(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        query, key, value = self._split_inputs(inputs)
        is_grouped = self.heads != self.kv_heads
        # A fourth input is a bias of the scores, such as relative positions.
        bias = None
        if len(inputs) > 3:
            bias = fit_shape(inputs[3], (1, self.tokens, self.kv_tokens)).to(query.dtype)
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias,
            is_causal=self.causal and bias is None,
            enable_gqa=is_grouped,
        )
        return out.transpose(1, 2).reshape(out.shape[0], self.tokens, -1)

    def drop_heads(self, count: int) -> None:
        """Remove heads; the layers before and after must lose the same channels."""
        sizes = dict(self.op.sizes)
        self.heads = sizes["heads"] = self.heads - count
        self.kv_heads = sizes["kv_heads"] = self.kv_heads - count
        self.op = Op(self.op.kind, Sizes(sizes))

    def _split_windows(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 4 and x.shape[1] == self.windows:
            return x.flatten(0, 1)
        widths = self.heads * self.head_dim
        return fit_shape(x, (self.windows, self.tokens, widths)).flatten(0, 1)

    def _split_inputs(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return query, key and value by heads, from one packed input or from several."""
        sizes = [heads * self.head_dim for heads in (self.heads, self.kv_heads, self.kv_heads)]
        if len(inputs) == 1 and inputs[0].shape[1:] == (self.tokens, sum(sizes)):
            inputs = inputs[0].split(sizes, dim=-1)
        last = len(inputs) - 1
        query, key, value = inputs[0], inputs[min(1, last)], inputs[min(2, last)]
        return (
            self._split_heads(query, self.tokens, self.heads, "query"),
            self._split_heads(key, self.kv_tokens, self.kv_heads, "key"),
            self._split_heads(value, self.kv_tokens, self.kv_heads, "value"),
        )

    def _split_heads(self, x: torch.Tensor, tokens: int, heads: int, name: str) -> torch.Tensor:
        if x.shape[1:] == (heads, tokens, self.head_dim):
            return x
        if x.shape[1:] != (tokens, heads * self.head_dim):
            if tokens > self.tokens and not torch.is_grad_enabled():
                return self._read_cache(name, x, (x.shape[0], heads, tokens, self.head_dim))
            # Another sequence, or a view was lost on reading: any elements will do.
            x = fit_shape(x, (tokens, heads * self.head_dim))
        return x.view(x.shape[0], tokens, heads, self.head_dim).transpose(1, 2)

    def _read_cache(self, name: str, x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the keys or values of earlier tokens, which inference has computed before."""
        known = self.cache.get(name)
        if known is None or (known.shape, known.dtype) != (shape, x.dtype):
            self.cache[name] = known = torch.randn(shape, dtype=x.dtype, device=x.device)
        return known


class CacheAppend(nn.Module):
    """Appends one token to the cached keys or values of earlier ones, as a copy of all of them.

    Args:
        shape: Shape of a sample of the new token.
        out: Shape with all tokens; it differs from ``shape`` along the tokens.
        is_strided: Whether the new token is a part of a wider tensor.
    """

    def __init__(self, shape: Shape, out: Shape, is_strided: bool) -> None:
        super().__init__()
        self.axis = next((i for i, size in enumerate(shape) if size != out[i]), 0)
        tokens = out[self.axis] - shape[self.axis]
        self.cached_shape = (*out[: self.axis], tokens, *out[self.axis + 1 :])
        self.is_strided = is_strided
        self.cache: torch.Tensor | None = None
        self.wide: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cache is None or self.cache.shape[0] != x.shape[0] or self.cache.dtype != x.dtype:
            self.cache = x.new_zeros((x.shape[0], *self.cached_shape))
            self.wide = x.new_zeros((x.shape[0], 3, *x.shape[1:]))
        assert self.wide is not None
        new = self.wide[:, 0] if self.is_strided else x
        return torch.cat([self.cache, new], dim=self.axis + 1)


class RecurrentOutput(nn.Module):
    """A recurrent module that returns its output sequence without the final states."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)[0]
        return out


class SelfAttention(nn.Module):
    """Multi-head self-attention without attention weights."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() > 3:
            # Sequences that attend only to themselves are samples.
            return self.forward(x.flatten(0, 1)).view(x.shape)
        out: torch.Tensor = self.inner(x, x, x, need_weights=False)[0]
        return out


class DecomposedRMSNorm(nn.Module):
    """RMSNorm in elementary operators, as model libraries write it."""

    def __init__(self, width: int, affine: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if affine else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        out = wide.to(x.dtype)
        return out if self.weight is None else self.weight * out


class NewGELUActivation(nn.Module):
    """GELU with the tanh approximation in elementary operators; under autocast pow runs in fp32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class QuickGELUActivation(nn.Module):
    """GELU with the sigmoid approximation in elementary operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


# Keys are the lower-case class names that reading gives them, here and in model libraries.
DECOMPOSED_ACTIVATIONS = {
    cls.__name__.lower(): cls for cls in (NewGELUActivation, QuickGELUActivation)
}


class ElementwisePlaceholder(nn.Module):
    """As many elementwise passes as a function makes that cannot be rebuilt.

    It reproduces memory traffic, not values: a hand-written activation costs what its passes cost.
    A network with such a function is not ``buildable``, but a variant can still contain its layer.
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


class ConcatPlaceholder(nn.Module):
    """Concatenation along an axis that cannot be rebuilt: the same elements, copied once."""

    def __init__(self, out: Shape) -> None:
        super().__init__()
        self.out = out

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) == 1:
            return fit_shape(inputs[0].clone(), self.out)
        flat = [x.flatten(1) for x in inputs]
        if sum(x.shape[1] for x in flat) > math.prod(self.out):
            # The module concatenated only slices of them.
            flat = [x[:, : max(1, math.prod(self.out) // len(flat))] for x in flat]
        flat = list(fit_channels(flat, math.prod(self.out)))
        return torch.cat(flat, dim=1).reshape(-1, *self.out)


class MatrixProduct(nn.Module):
    """A matrix product of two inputs, or of one input with itself."""

    def __init__(self, right_shape: Shape) -> None:
        super().__init__()
        self.right_shape = right_shape

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        left = inputs[0]
        right = inputs[1] if len(inputs) > 1 else fit_shape(left, self.right_shape)
        return torch.matmul(left, right)


class FunctionModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)
