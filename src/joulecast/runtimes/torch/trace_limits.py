"""Limit the time and memory of a step that is traced on real tensors."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from joulecast.errors import NetError
from joulecast.units import format_bytes

MAX_TRACE_S = 60.0
# Weights are copied and get gradients, so that the module is not changed.
_COPIES_OF_WEIGHTS = 2
# Share of the free memory that a trace may take.
_MEMORY_SHARE = 0.7


class TraceLimits:
    """What a trace may still take.

    Args:
        net: The module to trace.

    Raises:
        NetError: Copies of its weights alone take too much memory.
    """

    def __init__(self, net: nn.Module) -> None:
        self.deadline_s = time.monotonic() + MAX_TRACE_S
        self.limit_bytes = _MEMORY_SHARE * find_available_bytes()
        weights = sum(p.numel() * p.element_size() for p in net.parameters())
        self.used_bytes = float(_COPIES_OF_WEIGHTS * weights)
        self._check_memory()

    def spend(self, out: Any) -> None:
        """Count an operator's result, which the trace keeps.

        Raises:
            NetError: The trace takes too long, or too much memory.
        """
        tensors = (t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor))
        self.used_bytes += sum(t.numel() * t.element_size() for t in tensors)
        self._check_memory()
        if time.monotonic() > self.deadline_s:
            raise NetError(
                "its control flow depends on values, and a step of two samples takes more than "
                f"{MAX_TRACE_S:.0f} s on this CPU: give smaller inputs"
            )

    def _check_memory(self) -> None:
        if self.used_bytes > self.limit_bytes:
            raise NetError(
                "its control flow depends on values, and a step of two samples takes more memory "
                f"than is free ({format_bytes(self.limit_bytes)}): give smaller inputs"
            )


def find_available_bytes() -> float:
    """Return the memory that is free on this machine; infinite where that is unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return float("inf")
