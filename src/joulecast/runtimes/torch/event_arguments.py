"""Extract arguments and per-sample shapes from a traced function call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from joulecast.runtimes.torch.trace_events import Event

Shape = tuple[int, ...]


def bind_arguments(event: Event, *names: str) -> dict[str, Any]:
    """Return positional arguments under the given names, together with keyword arguments."""
    return {**dict(zip(names, event.args, strict=False)), **event.kwargs}


def first_tensor(event: Event) -> torch.Tensor:
    """Return the first tensor argument, looking into lists; the output where there is none."""
    for value in (*event.args, *event.kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value[0]
    return event.outputs[0]


def sample_shape(shape: Any, batch: int) -> Shape:
    """Return the shape of one sample, wherever the batch axis is; flat where none divides."""
    sizes = tuple(int(size) for size in shape)
    if sizes and sizes[0] == batch:
        return sizes[1:]
    if sizes and sizes[0] % batch == 0 and sizes[0]:
        return (sizes[0] // batch, *sizes[1:])
    if len(sizes) > 1 and sizes[1] == batch:
        return (sizes[0], *sizes[2:])
    return (-(-math.prod(sizes) // batch),)


def input_sample_shape(event: Event, batch: int) -> Shape:
    """Return the shape of one sample of the first tensor argument."""
    return sample_shape(first_tensor(event).shape, batch)


def expand_size(value: Any, dims: int) -> Shape:
    """Return a size for each spatial axis, as ``stride=2`` means ``(2, 2)``."""
    if isinstance(value, int):
        return (value,) * dims
    sizes = tuple(int(size) for size in value)
    return sizes * dims if len(sizes) == 1 else sizes


def find_largest_constant(event: Event, known: Sequence[torch.Tensor], batch: int) -> int:
    """Return how many elements per sample the largest tensor argument besides ``known`` has.

    Numbers do not count: they keep the precision of the other operand. 0 if there is none.
    """
    known_ids = set(map(id, known))
    sizes = [
        math.prod(value.shape) // (batch if value.shape[0] == batch and value.dim() > 1 else 1)
        for value in event.args
        if isinstance(value, torch.Tensor)
        and value.dim()
        and value.is_floating_point()
        and id(value) not in known_ids
    ]
    return max(sizes, default=0)


def function_name(event: Event) -> str:
    """Return the plain name of a function: ``__iadd__``, ``add_`` and ``add`` are all ``add``."""
    name = event.name
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name != "index" and name[0] in "ri" and name[1:] in _REFLECTED:
            name = name[1:]
    return _SYNONYMS.get(name.rstrip("_"), name.rstrip("_"))


_REFLECTED = {"add", "mul", "sub", "truediv", "matmul", "pow"}
_SYNONYMS = {
    "truediv": "div",
    "cat": "concat",
    "concatenate": "concat",
    "contiguous": "copy",
    "clone": "copy",
}
