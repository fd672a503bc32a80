"""Records of a traced training step: function calls, module calls and their costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from joulecast.operators import Shape, Work

# Value ids of the module's inputs count down from here; those of computed values count up from 0.
INPUT = -1

_REFLECTED = {"add", "mul", "sub", "truediv", "matmul", "pow"}
_SYNONYMS = {
    "truediv": "div",
    **dict.fromkeys(("cat", "concatenate"), "concat"),
    **dict.fromkeys(("contiguous", "clone"), "copy"),
}


@dataclass
class Event:
    """One function call of the traced module.

    Attributes:
        name: Name of the function, or of the leaf module.
        module_path: Qualified name of the module that made the call.
        module_call: Index of the call of that module, counted from 0.
        inputs: The values that it reads, with ids; ``INPUT`` and below are the module's inputs.
        output_ids: Ids of the values that it returns.
        outputs: The returned tensors.
        param_names: Names of the parameters that it reads.
        is_dynamic: It depends on the module's input or on parameters.
        needs_input_grad: One of its dynamic inputs requires a gradient.
        has_trainable_params: One of its parameters requires a gradient.
        matmuls: ``count, m, k, n`` of the matrix products that it runs.
        recomputed: Cost of running it again during backward: activation checkpointing.
        is_recomputed: It is run again during backward.
        leaf_module: The module, if a module is traced as one call.
        is_fused: It replaces several consecutive calls.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module_path: str
    module_call: int
    inputs: tuple[tuple[int, torch.Tensor], ...] = ()
    output_ids: tuple[int, ...] = ()
    outputs: tuple[torch.Tensor, ...] = ()
    param_names: tuple[str, ...] = ()
    is_dynamic: bool = True
    needs_input_grad: bool = False
    has_trainable_params: bool = False
    forward: Work = Work()
    backward: Work = Work()
    recomputed: Work = Work()
    is_recomputed: bool = False
    matmuls: list[tuple[int, int, int, int]] = field(default_factory=list)
    leaf_module: nn.Module | None = None
    is_fused: bool = False

    @property
    def input_ids(self) -> list[int]:
        """Ids of the values that it reads."""
        return [value for value, _ in self.inputs]

    @property
    def function_name(self) -> str:
        """The plain name of its function: ``__iadd__``, ``add_`` and ``add`` are all ``add``."""
        name = self.name
        if name.startswith("__") and name.endswith("__"):
            name = name[2:-2]
            if name != "index" and name[0] in "ri" and name[1:] in _REFLECTED:
                name = name[1:]
        return _SYNONYMS.get(name.rstrip("_"), name.rstrip("_"))

    @property
    def first_tensor(self) -> torch.Tensor:
        """The first tensor argument, looking into lists; the output where there is none."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, torch.Tensor):
                return value
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
                return value[0]
        return self.outputs[0]

    def bind(self, *names: str) -> dict[str, Any]:
        """Return positional arguments under the given names, together with keyword arguments."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def input_shape(self, batch: int) -> Shape:
        """Return the shape of one sample of the first tensor argument."""
        return sample_shape(self.first_tensor.shape, batch)

    def find_largest_constant(self, known: Sequence[torch.Tensor], batch: int) -> int:
        """Return the elements per sample of the largest tensor argument besides ``known``.

        Numbers do not count: they keep the precision of the other operand. 0 if there is none.
        """
        known_ids = set(map(id, known))
        sizes = [
            math.prod(value.shape) // (batch if value.shape[0] == batch and value.dim() > 1 else 1)
            for value in self.args
            if isinstance(value, torch.Tensor)
            and value.dim()
            and value.is_floating_point()
            and id(value) not in known_ids
        ]
        return max(sizes, default=0)


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module, and the half-open range of events inside it."""

    path: str
    class_name: str
    index: int
    start: int
    stop: int
    is_leaf: bool


@dataclass
class Trace:
    """Everything that one training step of a module ran.

    Attributes:
        total: Cost of all operators of forward and backward, the loss included.
        loss: Cost of the loss function.
        output_id: Id of the value that the loss is computed from.
        ops_without_rule: Operators whose FLOPs are unknown, with how often they ran.
        uncounted_bytes: Bytes that those operators moved.
        is_real: It ran on real tensors.
    """

    params: dict[str, torch.Tensor]
    inputs: list[torch.Tensor]
    is_real: bool = False
    events: list[Event] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=list)
    total: Work = Work()
    loss: Work = Work()
    output_id: int = INPUT
    ops_without_rule: Counter[str] = field(default_factory=Counter)
    uncounted_bytes: float = 0.0


def sample_shape(shape: Sequence[int], batch: int) -> Shape:
    """Return the shape of one sample, wherever the batch axis is; flat where none divides."""
    sizes = tuple(int(size) for size in shape)
    if sizes and sizes[0] == batch:
        return sizes[1:]
    if sizes and sizes[0] % batch == 0 and sizes[0]:
        return (sizes[0] // batch, *sizes[1:])
    if len(sizes) > 1 and sizes[1] == batch:
        return (sizes[0], *sizes[2:])
    return (-(-math.prod(sizes) // batch),)
