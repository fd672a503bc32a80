"""Check what a module is before it is read: quantised, compiled, frozen, of another precision."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch
from torch import nn

from joulecast.errors import NetError

_QUANTISED_PACKAGES = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.intrinsic.quantized",
    "torch.nn.quantized",
    "torch.nn.intrinsic.quantized",
)
OTHER_PRECISIONS = {
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
"""Types of weights that are counted as if they were float32, with their names."""


def unwrap_compiled(net: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` wraps; any other module as it is."""
    while type(net).__name__ == "OptimizedModule":
        inner = getattr(net, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            break
        net = inner
    return net


@contextlib.contextmanager
def run_uncompiled() -> Iterator[None]:
    """Run compiled modules and functions as they are written."""
    # Importing the compiler takes seconds, and without it nothing can have been compiled.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def check_trainable_types(net: nn.Module) -> None:
    """Raise an error for a module that was quantised for inference.

    Raises:
        NetError: It was; the message names its first quantised part.
    """
    for path, module in net.named_modules():
        if type(module).__module__.startswith(_QUANTISED_PACKAGES):
            raise NetError(
                f"{path or 'the module'} is quantised ({type(module).__name__}) and cannot be "
                "trained: give the floating-point module"
            )


def list_module_notes(net: nn.Module) -> list[str]:
    """Return what a reader of an estimate should know about a module, in sentences."""
    notes = []
    if any(map(_is_compiled, net.modules())):
        notes.append(
            "torch.compile was left out: the module was read as it runs without, which costs more."
        )
    params = list(net.parameters())
    types = {p.dtype for p in params}
    names = sorted(OTHER_PRECISIONS[one] for one in types if one in OTHER_PRECISIONS)
    if names:
        share = "All" if len(types) == 1 else "Some"
        advice = (
            "no setup describes that, and the real step costs more than estimated"
            if "float64" in names
            else "the estimate is for the precision of the setup, so give the one that you train in"
        )
        notes.append(f"{share} weights are {' and '.join(names)}: {advice}.")
    packed = sum(not (p.is_floating_point() or p.is_complex()) for p in params)
    if packed:
        notes.append(
            f"{packed} weights are integers (quantised): what their operators multiply is only "
            "counted where PyTorch shows it."
        )
    if params and not any(p.requires_grad for p in params):
        notes.append("No weight requires a gradient: a step is a forward pass and the loss.")
    return notes


def has_other_precision(net: nn.Module) -> bool:
    """Return whether any weight is in another floating-point type than float32."""
    return any(p.dtype in OTHER_PRECISIONS for p in net.parameters())


def _is_compiled(module: nn.Module) -> bool:
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return is_wrapper or getattr(module, "_compiled_call_impl", None) is not None
