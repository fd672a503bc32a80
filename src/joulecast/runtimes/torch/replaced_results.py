"""Compute results that a trace cannot leave to PyTorch.

Some operators fail on fake tensors although a real step runs them, and a random number that decides
which layers run must not decide what is read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

# A random number that decides whether a layer is skipped: most are not.
_TYPICAL_DRAW = 0.5


def replace_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of such an operator; None for all others."""
    name = func._schema.name
    if name == "aten::_grouped_mm":
        offsets = kwargs.get("offs", args[2] if len(args) > 2 else None)
        return _multiply_groups(args[0], args[1], offsets)
    if name == "aten::rand" and list(args[0]) == []:
        return _draw_once(func, args, kwargs)
    return None


def _multiply_groups(left: Any, right: Any, offsets: Any) -> torch.Tensor | None:
    """Return the empty result of a grouped product.

    On fake tensors PyTorch refuses all types but bfloat16, and strides that its kernels pad.
    """
    if not isinstance(left, FakeTensor):
        return None
    if left.dim() == right.dim() == 2:
        return left.new_empty(offsets.shape[0], left.shape[0], right.shape[1])
    if left.dim() == right.dim():
        return left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    return left.new_empty(left.shape[-2], right.shape[-1])


def _draw_once(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return a random scalar with a typical value, so that a module can compare it (LayerDrop)."""
    out: torch.Tensor = func(*args, **kwargs)
    if not isinstance(out, FakeTensor):
        return out.fill_(_TYPICAL_DRAW)
    if out.constant is None:
        with unset_fake_temporarily():
            out.constant = torch.full((), _TYPICAL_DRAW, dtype=out.dtype, device="cpu")
    return out
