"""Read the module of a running training, without touching its weights, state or random numbers.

A copy of the module without values is read: parameters and buffers become meta tensors, which take
no memory, and whatever the module counts or logs while it is read is lost with the copy. A hook
sees the first batch without getting in the way of copies, pickles and torch.compile. Optimizer,
precision and device of the trainer are described as those of a Setup.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from joulecast.features.nets import NetRequest, ResolvedNet
from joulecast.records import Setup
from joulecast.system.errors import InputError
from joulecast.torch_nets.losses import mean_square_loss

Shapes = tuple[tuple[int, ...], ...]


def read_training_net(module: nn.Module, inputs: Any, setup: Setup) -> tuple[ResolvedNet, Setup]:
    """Return the network of a module that is being trained, and its setup with its batch size.

    ``inputs`` is what it was called on: a tuple of positional or a dict of named arguments.

    Raises:
        NetError: The module cannot be read.
        InputError: It was called on no tensor.
    """
    shapes = list_shapes(inputs)
    if not shapes or not shapes[0]:
        raise InputError("the first batch contains no tensor whose first axis is the batch")
    setup = replace(setup, batch=shapes[0][0])
    found, _ = NetRequest(
        copy_without_values(module),
        pytree.tree_map_only(torch.Tensor, _drop_values, inputs),
        setup,
        setup_options={"loss": find_loss},
    ).resolve()
    return found, setup


def copy_without_values(module: nn.Module) -> nn.Module:
    """Return a copy whose parameters and buffers have shapes and types, but no values."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        empty = _drop_values(parameter.detach())
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    memo.update({id(buffer): _drop_values(buffer) for buffer in module.buffers()})
    copied = copy.deepcopy(module, memo)
    for one in copied.modules():
        # Accelerate replaces forward by one with autocast, which still belongs to the original.
        if "_original_forward" in one.__dict__:
            one.__dict__.pop("forward", None)
    return copied


def list_shapes(values: Any) -> Shapes:
    """Return the shapes of all tensors in a nested value."""
    leaves = pytree.tree_leaves(values)
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))


def join_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of a call as one tuple or one dict, as modules are read."""
    if not kwargs:
        return args
    if not args:
        return dict(kwargs)
    return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)


def find_loss(output: Any) -> torch.Tensor:
    """Return the loss in what a module returned; the mean square of its output if there is none."""
    if isinstance(output, torch.Tensor):
        found: Any = output
    elif isinstance(output, dict):
        found = output.get("loss")
    else:
        found = getattr(output, "loss", output[0] if isinstance(output, tuple) else None)
    if isinstance(found, torch.Tensor) and found.numel() == 1:
        return found
    return mean_square_loss(output)


class TrainingStepModule(nn.Module):
    """The training step of a Lightning module, as a module that can be read."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainingStepModule:
        inner = copy.deepcopy(self.inner, memo)
        for name in ("log", "log_dict"):
            inner.__dict__[name] = lambda *args, **kwargs: None
        return TrainingStepModule(inner)

    def forward(self, batch: Any) -> Any:
        step: Any = self.inner.training_step
        parameters = inspect.signature(step).parameters.values()
        positional = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        return step(batch, 0) if len(positional) > 1 else step(batch)


def _drop_values(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta")


class CallHook:
    """A forward pre-hook that tells a watcher about calls, as long as the watcher lives.

    Copies and pickles of it tell nobody: they belong to copies of the module.
    """

    def __init__(self, watcher: Any = None) -> None:
        self._watcher = None if watcher is None else weakref.ref(watcher)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Tracing the rest would break the graph, and end the program where that is forbidden.
        if torch.compiler.is_compiling():
            return
        watcher = None if self._watcher is None else self._watcher()
        if watcher is not None:
            watcher.see_call(args, kwargs)

    def __reduce__(self) -> tuple[type[CallHook], tuple[()]]:
        return CallHook, ()


def watch_calls(module: nn.Module, watcher: Any) -> Callable[[], None]:
    """Call ``watcher.see_call(args, kwargs)`` at every call of a module; return what ends this.

    Of a module that ``torch.compile`` wrapped, give the wrapper: calls of what it wraps are
    compiled, and not seen. The watcher is not kept alive.
    """
    hook = CallHook(watcher)
    compiled: Any = module._compiled_call_impl
    if compiled is None:
        return module.register_forward_pre_hook(hook, with_kwargs=True).remove

    # Module.compile compiles the hooks as well, so calls are seen before the compiled code.
    def call(*args: Any, **kwargs: Any) -> Any:
        hook(module, args, kwargs)
        return compiled(*args, **kwargs)

    def restore() -> None:
        if module._compiled_call_impl is call:
            module._compiled_call_impl = compiled

    module._compiled_call_impl = call
    return restore


# The optimizer of a Setup that keeps as many values for each weight: that decides what its update
# costs.
_NEAREST = {
    **dict.fromkeys(("SGD", "Adagrad", "Lion", "Muon", "RMSprop", "Rprop", "SignSGD"), "sgd"),
    **dict.fromkeys(("Adam", "Adadelta", "Adamax", "NAdam", "RAdam"), "adam"),
}


def choose_optimizer(optimizer: Any) -> tuple[str, str]:
    """Return the optimizer of a Setup, and a sentence if another one was assumed.

    Wrappers of Accelerate and Lightning are opened; a trainer without an optimizer has ``sgd``.
    """
    if optimizer is None:
        return "sgd", ""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    name = type(optimizer).__name__
    nearest = _NEAREST.get(name, "adamw")
    if name.lower() == nearest:
        return nearest, ""
    return nearest, f"The optimizer {name} is estimated as {nearest}, the nearest that is known."


def choose_precision(device: torch.device) -> str:
    """Return the precision of a Setup for a trainer that uses 32 bits."""
    uses_tf32 = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if uses_tf32 else "fp32"


def name_device(device: torch.device) -> str:
    """Return a device as Joulecast names it: ``cpu`` or ``cuda:0``."""
    if device.type != "cuda":
        return device.type
    index = torch.cuda.current_device() if device.index is None else device.index
    return f"cuda:{index}"


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether ``torch.compile`` compiled the module as a whole."""
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return is_wrapper or getattr(module, "_compiled_call_impl", None) is not None
