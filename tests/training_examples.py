"""A small network, its data and its profile, for tests of trainers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import joulecast

CLASSES, FEATURES, WIDTH, BATCH = 10, 64, 4096, 64


def make_layers(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))


def make_samples(count: int = 256) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(FEATURES), torch.tensor(n % CLASSES)) for n in range(count)]


def make_cpu_profile(place: Path) -> str:
    """Measure steps of two other networks on this processor; return the store."""
    store = str(place / "store.sqlite")
    for width in (WIDTH // 16, WIDTH // 2):
        network = joulecast.inspect(make_layers(width), torch.randn(BATCH, FEATURES))
        joulecast.measure(
            network, meter="modelled", batch=BATCH, optimizer="adamw", rounds=2, store=store
        )
    return store
