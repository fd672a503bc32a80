"""Describe how a trainer trains as a Setup: optimizer, precision, device."""

from __future__ import annotations

from typing import Any

import torch

# How many values an optimizer keeps for each weight decides what its update costs.
_OPTIMIZERS = {
    "SGD": "sgd",
    "Adam": "adam",
    "AdamW": "adamw",
}
_NEAREST = {
    "Adagrad": "sgd",
    "Lion": "sgd",
    "Muon": "sgd",
    "RMSprop": "sgd",
    "Rprop": "sgd",
    "SignSGD": "sgd",
    "Adadelta": "adam",
    "Adamax": "adam",
    "NAdam": "adam",
    "RAdam": "adam",
}


def choose_optimizer(optimizer: Any) -> tuple[str, str]:
    """Return the optimizer of a Setup, and a sentence if another one was assumed.

    Args:
        optimizer: That of the trainer; wrappers of Accelerate and Lightning are opened.
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    name = type(optimizer).__name__
    if name in _OPTIMIZERS:
        return _OPTIMIZERS[name], ""
    nearest = _NEAREST.get(name, "adamw")
    return nearest, f"The optimizer {name} is estimated as {nearest}, the nearest that is known."


def choose_precision(device: torch.device, half: str = "") -> str:
    """Return the precision of a Setup.

    Args:
        device: The device that trains.
        half: ``bf16`` or ``fp16`` where the trainer uses one of them.
    """
    if half:
        return half
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
