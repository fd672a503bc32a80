"""Apply the precision, thread and cuDNN settings of a Setup while a step runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from joulecast.kinds import uses_autocast
from joulecast.records import Setup

HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextlib.contextmanager
def apply_settings(setup: Setup, device: torch.device) -> Iterator[None]:
    """Set threads, TF32, ``cudnn.benchmark`` and autocast; restore them afterwards."""
    with contextlib.ExitStack() as stack:
        if setup.threads:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(setup.threads)
        if device.type == "cuda":
            stack.enter_context(_apply_cuda_settings(setup))
        if uses_autocast(setup):
            dtype = HALF_DTYPES[setup.precision]
            # A captured graph must not hold casts cached by another step.
            stack.enter_context(torch.autocast(device.type, dtype=dtype, cache_enabled=False))
        yield


def convert_floats(values: Any, setup: Setup) -> Any:
    """Return a module or inputs in the format of inference: half precision converts them.

    Training keeps weights in full precision, and autocast converts as it goes.
    """
    if setup.phase == "train" or setup.precision not in HALF_DTYPES:
        return values
    dtype = HALF_DTYPES[setup.precision]
    if isinstance(values, torch.nn.Module):
        return values.to(dtype)

    def convert(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    return pytree.tree_map_only(torch.Tensor, convert, values)


@contextlib.contextmanager
def _apply_cuda_settings(setup: Setup) -> Iterator[None]:
    settings: tuple[tuple[Any, str, Any], ...] = (
        (torch.backends.cuda.matmul, "allow_tf32", setup.precision == "tf32"),
        (torch.backends.cudnn, "allow_tf32", setup.precision == "tf32"),
        (torch.backends.cudnn, "benchmark", setup.cudnn_benchmark),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in settings]
    for owner, name, value in settings:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
