"""A step on real tensors stops when it takes too long or too much memory."""

import pytest
import torch
from torch import nn

from joulecast.errors import NetError
from joulecast.runtimes.torch import tracer as trace_limits
from joulecast.runtimes.torch.tracer import TraceLimits


def test_memory_is_counted_with_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_limits, "find_available_bytes", lambda: 10_000.0)
    limits = TraceLimits(nn.Linear(8, 8))
    limits.spend(torch.zeros(100))
    with pytest.raises(NetError, match="takes more memory than is free"):
        limits.spend([torch.zeros(1000), None, torch.zeros(1000)])
    with pytest.raises(NetError, match="takes more memory than is free"):
        TraceLimits(nn.Linear(100, 100))
