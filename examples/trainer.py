"""Train with Hugging Face's Trainer, and see what it takes: before, during and after.

    python examples/trainer.py --steps 40

It measures this processor briefly first, so that there is something to estimate from; on a machine
without an energy sensor all joules are modelled. Nothing is kept.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import joulecast
from joulecast.callbacks.transformers import EnergyCallback


class Classifier(nn.Module):
    """Two layers that return their loss, as Trainer wants it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and logits."""
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def measure_processor(store: str) -> None:
    """Measure steps of two smaller networks."""
    for width in (2048, 16384):
        network = joulecast.inspect(Classifier(width).layers, torch.randn(64, 64))
        joulecast.measure(network, batch=64, optimizer="adamw", rounds=2, store=store)


def main() -> None:
    """Train, and print the energy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--budget", help="stop at this energy, like 20J")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store.sqlite")
        measure_processor(store)
        energy = EnergyCallback(given.budget, store=store)
        data = [{"x": torch.randn(64), "labels": torch.tensor(n % 10)} for n in range(4096)]
        arguments = TrainingArguments(
            folder,
            max_steps=given.steps,
            per_device_train_batch_size=64,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(Classifier(32768), arguments, train_dataset=data, callbacks=[energy]).train()
    summary = energy.summary
    assert summary is not None and summary.energy_j is not None and summary.estimated_j is not None
    assert summary.estimated_interval_j is not None
    low_j, high_j = summary.estimated_interval_j
    print(f"{summary.steps} steps took {summary.energy_j:.1f} J ({summary.provenance}).")
    print(
        f"The estimate of {given.steps} steps was {summary.estimated_j:.1f} J "
        f"(95 % interval {low_j:.1f}–{high_j:.1f} J)."
    )


if __name__ == "__main__":
    main()
