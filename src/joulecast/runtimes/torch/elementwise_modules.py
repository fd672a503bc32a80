"""Modules for functions that pass over elements, each as networks call it.

A function may run kernels of its own in the backward pass: the gradient of a maximum compares, that
of a bilinear interpolation adds atomically and can take fifty times as long as a copy. Functions
that are not listed here are replaced by copies (``ElementwisePlaceholder``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.runtimes.input_fits import Shape, find_operand_shape

SampleFunction = Callable[[torch.Tensor, Shape], torch.Tensor]
"""A function of a batch and of the shape of an output sample."""


class OperandModule(nn.Module):
    """Arithmetic with a tensor that no layer computes: a learned scale, a table of rotations.

    Args:
        fn: ``add``, ``sub``, ``mul`` or ``div``.
        size: Elements of the operand.
        shape: Shape of a sample.
        is_learned: Whether it is a parameter.
    """

    def __init__(self, fn: str, size: int, shape: Shape, is_learned: bool) -> None:
        super().__init__()
        self.function = _ARITHMETIC[fn]
        operand = torch.ones(find_operand_shape(size, shape))
        if is_learned:
            self.operand = nn.Parameter(operand)
        else:
            self.register_buffer("operand", operand, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.operand)


def find_function(fn: str, shape: Shape, out: Shape) -> Callable[..., torch.Tensor] | None:
    """Return the function that is called so, if it turns samples of one shape into the other."""
    function = _FUNCTIONS.get(fn)
    if function is None:
        return None
    sample = torch.empty((1, *shape), device="meta")
    try:
        found = function(sample, out)
    except (RuntimeError, ValueError, IndexError, NotImplementedError):
        return None
    # Further inputs, such as labels, are not differentiated.
    return (lambda x, *_: function(x, out)) if tuple(found.shape[1:]) == out else None


def _make_reduction(function: Callable[..., torch.Tensor]) -> SampleFunction:
    def reduce(x: torch.Tensor, out: Shape) -> torch.Tensor:
        shape = tuple(x.shape[1:])
        for axis in range(len(shape)):
            if out == shape[:axis] + shape[axis + 1 :]:
                return function(x, axis + 1)
            if out == (*shape[:axis], 1, *shape[axis + 1 :]):
                return function(x, axis + 1).unsqueeze(axis + 1)
        return function(x.flatten(1), 1).reshape(-1, *out)

    return reduce


def _make_interpolation(mode: str) -> SampleFunction:
    return lambda x, out: F.interpolate(x, size=out[1:], mode=mode)


def _apply(function: Callable[[torch.Tensor], torch.Tensor]) -> SampleFunction:
    return lambda x, out: function(x)


def _halve_axis(x: torch.Tensor, out: Shape) -> torch.Tensor:
    return F.glu(x, _find_changed_axis(x, out))


def _repeat(x: torch.Tensor, out: Shape) -> torch.Tensor:
    axis = _find_changed_axis(x, out)
    return x.repeat_interleave(out[axis - 1] // x.shape[axis], axis)


def _find_changed_axis(x: torch.Tensor, out: Shape) -> int:
    """Return the axis of a batch that has another size in the output."""
    axes = [i for i, size in enumerate(out, start=1) if i < x.dim() and size != x.shape[i]]
    if len(axes) != 1:
        raise ValueError(f"{tuple(x.shape[1:])} does not become {out} along one axis")
    return axes[0]


def _compute_loss(x: torch.Tensor, out: Shape) -> torch.Tensor:
    logits = x.flatten(0, -2)
    labels = torch.zeros(len(logits), dtype=torch.long, device=x.device)
    loss = F.cross_entropy(logits, labels)
    return loss.expand(len(x), *out)


def _roll(x: torch.Tensor) -> torch.Tensor:
    axes = tuple(range(1, x.dim()))[:2]
    return torch.roll(x, (1,) * len(axes), axes)


_ARITHMETIC: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
}
_FUNCTIONS: dict[str, SampleFunction] = {
    **{
        name: _make_reduction(getattr(torch, name))
        for name in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "norm")
    },
    "max": _make_reduction(lambda x, axis: x.max(axis).values),
    "min": _make_reduction(lambda x, axis: x.min(axis).values),
    **{
        f"interpolate {mode}": _make_interpolation(mode)
        for mode in ("nearest", "linear", "bilinear", "bicubic", "trilinear", "area")
    },
    **{
        name: _apply(getattr(torch, name))
        for name in ("exp", "log", "log1p", "sqrt", "rsqrt", "square", "abs", "sin", "cos", "erf")
    },
    "clamp": _apply(lambda x: x.clamp(-1.0, 1.0)),
    "pow": _apply(lambda x: x.pow(2)),
    "float": _apply(lambda x: x.float()),
    "logsigmoid": _apply(F.logsigmoid),
    "celu": _apply(F.celu),
    "normalize": _apply(lambda x: F.normalize(x, dim=-1)),
    "roll": _apply(_roll),
    "glu": _halve_axis,
    "repeat_interleave": _repeat,
    "cross_entropy": _compute_loss,
}
