"""A small network, its data, its profile and a virtual clock, for tests of trainers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from virtual_instruments import VirtualClock

import joulecast
from joulecast.meters.modelled import ModelledMeter

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


@contextmanager
def use_virtual_clock() -> Iterator[VirtualClock]:
    """Measure callbacks on a virtual clock, on which the meter sees one busy core of 10 W."""
    clock = VirtualClock(step_s=1.0)
    fake = SimpleNamespace(monotonic=clock.now, time=lambda: 1.7e9)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("callbacks.training_energy", "features.monitor"):
            patch.setattr(f"joulecast.{module}.time", fake)
        patch.setattr(
            "joulecast.features.monitor.find_meter",
            lambda name, on: ModelledMeter(now=clock.now, cpu_time=clock.now),
        )
        yield clock
