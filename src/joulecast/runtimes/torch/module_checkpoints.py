"""Put the repeated blocks of a user's module under activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from joulecast.errors import InputError
from joulecast.runtimes.torch.checkpointed_layers import run_checkpointed
from joulecast.runtimes.torch.losses import LossFunction
from joulecast.runtimes.torch.net_reader import find_block_modules

Undo = Callable[[], None]


@contextmanager
def checkpointed_blocks(net: nn.Module, inputs: Any, loss: LossFunction | None) -> Iterator[None]:
    """Checkpoint the blocks of a module as long as the context lasts."""
    undo = checkpoint_module(net, inputs, loss)
    try:
        yield
    finally:
        undo()


def checkpoint_module(net: nn.Module, inputs: Any, loss: LossFunction | None) -> Undo:
    """Checkpoint the blocks of a module, unless it does so itself; return what undoes it.

    Models of transformers know how to do so themselves. A block of any other module is called by
    ``torch.utils.checkpoint`` while it trains.

    Args:
        net: The module, which is changed.
        inputs: What it is called on, to find its blocks.
        loss: Computes a scalar from its output.

    Raises:
        InputError: The module repeats no block.
    """
    if getattr(net, "is_gradient_checkpointing", False):
        return lambda: None
    if getattr(net, "supports_gradient_checkpointing", False):
        model: Any = net
        model.gradient_checkpointing_enable({"use_reentrant": False})
        undo_own: Undo = model.gradient_checkpointing_disable
        return undo_own
    found = find_block_modules(net, inputs, loss)
    if found.is_checkpointed:
        return lambda: None
    if not found.paths:
        raise InputError(
            f"{type(net).__name__} repeats no block to checkpoint: leave --checkpoint out, or call "
            "torch.utils.checkpoint in the module itself"
        )
    modules = [net.get_submodule(path) for path in found.paths]
    for module in modules:
        module.forward = _make_checkpointed(module)

    def undo() -> None:
        for module in modules:
            # The class has the method that the attribute hides.
            del module.forward

    return undo


def _make_checkpointed(module: nn.Module) -> Callable[..., Any]:
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        return run_checkpointed(forward, *args, **kwargs)

    return run
