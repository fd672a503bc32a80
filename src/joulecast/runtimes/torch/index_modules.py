"""Modules that move elements by index or multiply them by experts, for layers measured alone.

Which elements they move is arbitrary; how many, and by which kernels, is as in the module read.
Indices are drawn in the first call and kept, as a module's own are computed before.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.records import Sizes
from joulecast.runtimes.input_fits import Shape
from joulecast.runtimes.torch.input_adapters import fit_shape

# Grouped products refuse rows that are not a multiple of this.
_ALIGNED_BYTES = 16


class BagOfEmbeddings(nn.Module):
    """Sums of embeddings, ``bags`` for each sample."""

    def __init__(self, vocabulary: int, width: int, bags: int) -> None:
        super().__init__()
        self.bags = bags
        self.inner = nn.EmbeddingBag(vocabulary, width, mode="sum")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.bags == 1:
            out: torch.Tensor = self.inner(tokens)
            return out
        per_bag = max(1, tokens.shape[1] // self.bags)
        inner = self.inner(tokens[:, : per_bag * self.bags].reshape(-1, per_bag))
        return fit_shape(inner.reshape(tokens.shape[0], -1), (self.bags, inner.shape[-1]))


class GroupedLinear(nn.Module):
    """Experts of a mixture, each multiplying an equal share of the rows."""

    def __init__(self, experts: int, cin: int, cout: int, is_half: bool) -> None:
        super().__init__()
        self.is_half = is_half
        self.weight = nn.Parameter(torch.randn(experts, cout, cin) / math.sqrt(cin))
        self.offsets: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        # Autocast casts neither rows nor weights of a grouped product; some modules do.
        dtype = torch.bfloat16 if self.is_half else self.weight.dtype
        weight = self.weight.to(dtype).transpose(1, 2)
        out = _multiply_groups(rows.to(dtype), weight, self._find_offsets(rows))
        return out.reshape(*x.shape[:-1], -1)

    def _find_offsets(self, rows: torch.Tensor) -> torch.Tensor:
        experts = self.weight.shape[0]
        if self.offsets is None or self.offsets.device != rows.device:
            ends = [rows.shape[0] * (one + 1) // experts for one in range(experts)]
            self.offsets = torch.tensor(ends, dtype=torch.int32, device=rows.device)
        return self.offsets


class IndexedElements(nn.Module):
    """Selection by index tensors along some axes, across samples, or for each element."""

    def __init__(self, sizes: Sizes, shape: Shape) -> None:
        super().__init__()
        self.axes, self.across, self.out = sizes["axes"], sizes["across"], tuple(sizes["out"])
        self.table: nn.Parameter | None = None
        if sizes["params"]:
            self.table = nn.Parameter(torch.randn(sizes["params"]))
        self.indices: tuple[torch.Tensor, ...] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is not None:
            return self._select_rows(self.table, x.shape[0])
        if self.across and x.dim() > 1:
            rows = x.flatten(0, 1)
            wanted = x.shape[0] * self.out[0]
            (index,) = self._draw(x, [rows.shape[0]], wanted)
            return fit_shape(rows[index].reshape(x.shape[0], -1), self.out)
        if not self.axes or max(self.axes) + 1 >= x.dim():
            flat = x.flatten(1)
            (index,) = self._draw(x, [flat.shape[1]], x.shape[0] * math.prod(self.out))
            return flat.gather(1, index.reshape(x.shape[0], -1)).reshape(-1, *self.out)
        rest = math.prod(size for i, size in enumerate(x.shape[1:]) if i not in self.axes)
        wanted = max(1, math.prod(self.out) // rest)
        indices = self._draw(x, [x.shape[axis + 1] for axis in self.axes], wanted)
        selected: list[Any] = [slice(None)] * (max(self.axes) + 2)
        for axis, one in zip(self.axes, indices, strict=True):
            selected[axis + 1] = one
        return fit_shape(x[tuple(selected)], self.out)

    def _select_rows(self, table: torch.Tensor, batch: int) -> torch.Tensor:
        width = self.out[-1] if table.numel() % self.out[-1] == 0 else 1
        rows = table.reshape(-1, width)
        (index,) = self._draw(rows, [rows.shape[0]], batch * math.prod(self.out) // width)
        return rows[index].reshape(batch, *self.out)

    def _draw(self, x: torch.Tensor, limits: list[int], count: int) -> tuple[torch.Tensor, ...]:
        is_fitting = self.indices and self.indices[0].numel() == count
        if not is_fitting or self.indices[0].device != x.device:
            self.indices = tuple(
                torch.randint(0, limit, (count,), device=x.device) for limit in limits
            )
        return self.indices


class ScatteredElements(nn.Module):
    """Addition of rows to arbitrary places of a tensor."""

    def __init__(self, sizes: Sizes, shape: Shape) -> None:
        super().__init__()
        self.source, self.copies = tuple(sizes["source"]), sizes["copies"]
        self.index: torch.Tensor | None = None

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        x, source = inputs[0].flatten(1), fit_shape(inputs[-1], self.source).flatten(1)
        if self.index is None or self.index.shape != source.shape:
            self.index = torch.randint(0, x.shape[1], source.shape, device=x.device)
        target = x if self.copies else x * 1.0
        return target.scatter_add(1, self.index, source.to(x.dtype)).reshape(inputs[0].shape)


class SortedElements(nn.Module):
    """A sort of the last axis, or its largest elements."""

    def __init__(self, fn: str, out: Shape) -> None:
        super().__init__()
        self.fn, self.out = fn, tuple(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fn == "topk" and self.out[-1] < x.shape[-1]:
            return fit_shape(x.topk(self.out[-1], dim=-1).values, self.out)
        return fit_shape(x.sort(dim=-1).values, self.out)


def slice_twice(out: Shape, x: torch.Tensor) -> torch.Tensor:
    """Return the first elements of each sample in shape ``out``, and read one other slice.

    The gradients of both are padded with zeros and summed.
    """
    flat = x.flatten(1)
    first = fit_shape(flat, out)
    return first + flat[:, -1:].reshape(-1, *([1] * len(out)))


def view_and_copy_gradient(out: Shape, x: torch.Tensor) -> torch.Tensor:
    """Return each sample in shape ``out`` without a copy; its gradient is copied.

    Of a larger tensor these are the first elements, as if the others were parts like them. A
    smaller one is expanded.
    """
    found: torch.Tensor = _CopiedGradient.apply(x, tuple(out))
    return found


class _CopiedGradient(torch.autograd.Function):
    """A view. The parts of its gradient are concatenated, or an expanded axis is summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, out: Shape) -> torch.Tensor:
        ctx.shape = x.shape
        size, wanted = math.prod(x.shape[1:]), math.prod(out)
        flat = x.reshape(len(x), size)
        if wanted > size:
            return flat[:, 0].view(-1, *(1 for _ in out)).expand(-1, *out)
        return flat[:, :wanted].view(len(x), *out)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        flat = grads[0].flatten(1)
        size = math.prod(ctx.shape[1:])
        if flat.shape[1] > size:
            times = flat.shape[1] // size
            return flat[:, : times * size].view(len(flat), size, times).sum(-1).view(
                ctx.shape
            ), None
        times, rest = divmod(size, flat.shape[1])
        parts = [flat] * times + ([flat[:, :rest]] if rest else [])
        whole = torch.cat(parts, dim=1) if len(parts) > 1 else flat.clone()
        return whole.view(ctx.shape), None


def _multiply_groups(
    rows: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    is_aligned = all(size * rows.element_size() % _ALIGNED_BYTES == 0 for size in weight.shape[1:])
    if grouped_mm is not None and is_aligned:
        out: torch.Tensor = grouped_mm(rows, weight, offs=offsets)
        return out
    shares = rows.tensor_split(weight.shape[0])
    return torch.cat([share @ one for share, one in zip(shares, weight, strict=True)])
