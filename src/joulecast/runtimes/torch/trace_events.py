"""Records of a traced training step: function calls, module calls and their costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from joulecast.kinds import Work

# Value ids of the module's inputs count down from here; those of computed values count up from 0.
INPUT = -1


@dataclass
class Event:
    """One function call of the traced module.

    Attributes:
        name: Name of the function, or of the leaf module.
        module_path: Qualified name of the module that made the call.
        module_call: Index of the call of that module, counted from 0.
        input_ids: Ids of the values that it reads; ``INPUT`` and below are the module's inputs.
        input_tensors: The tensors of ``input_ids``, in the same order.
        output_ids: Ids of the values that it returns.
        outputs: The returned tensors.
        param_names: Names of the parameters that it reads.
        is_dynamic: It depends on the module's input or on parameters.
        needs_input_grad: A dynamic input of it requires a gradient.
        has_trainable_params: A parameter of it requires a gradient.
        matmuls: ``count, m, k, n`` of the matrix products that it runs.
        recomputed: Cost of running it again during backward: activation checkpointing.
        is_recomputed: It is run again during backward.
        leaf_module: The module that is traced as one call, if it is one.
        is_fused: It replaces several consecutive calls.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module_path: str
    module_call: int
    input_ids: tuple[int, ...] = ()
    input_tensors: tuple[torch.Tensor, ...] = ()
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

    def list_inputs(self) -> list[tuple[int, torch.Tensor]]:
        """Return the id and the tensor of every value that it reads."""
        return list(zip(self.input_ids, self.input_tensors, strict=True))


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

    events: list[Event]
    calls: list[ModuleCall]
    params: dict[str, torch.Tensor]
    inputs: list[torch.Tensor]
    total: Work
    loss: Work
    output_id: int
    ops_without_rule: dict[str, int] = field(default_factory=dict)
    uncounted_bytes: float = 0.0
    is_real: bool = False
