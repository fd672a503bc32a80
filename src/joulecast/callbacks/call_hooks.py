"""See the calls of a module without getting in the way of copies, pickles and torch.compile."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn


class CallWatcher(Protocol):
    """Something that wants to know how a module is called."""

    def see_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a call."""


class CallHook:
    """A forward pre-hook that tells a watcher about calls, as long as the watcher lives.

    Copies and pickles of it tell nobody: they belong to copies of the module.
    """

    def __init__(self, watcher: CallWatcher | None = None) -> None:
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


def watch_calls(module: nn.Module, watcher: CallWatcher) -> Callable[[], None]:
    """Tell a watcher about every call of a module; return a function that ends this.

    Args:
        module: What is called. Of a module that ``torch.compile`` wrapped, this is the wrapper:
            calls of what it wraps are compiled, and not seen.
        watcher: It is not kept alive.
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
