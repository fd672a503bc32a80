"""Search for accurate nets within an energy budget, on a small synthetic task.

    python examples/search_small_task.py

takes a few seconds, because the device is simulated. docs/how-to/search.md does the same on the
command line.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

import joulecast
from joulecast.features.search.space import NumberRange

FAMILY, SHAPE, STEPS, BATCH = "cnn5:16,32,32,32", (3, 32, 32), 50, 32
# Other widths vary from 1 to the family's own; nets with one channel in front learn little.
VARY = {
    "c1": NumberRange(4, 16),
    "c2": NumberRange(4, 32),
    "lr": NumberRange(1e-2, 2e-1, log=True),
}


def draw_stripes(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy stripes in four directions and the direction of each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    phases = 2 * math.pi * torch.rand(count, 1, 1, generator=generator)
    across, down = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="xy")
    angles = (math.pi / 4) * labels.reshape(-1, 1, 1)
    waves = torch.sin(0.8 * (across * torch.cos(angles) + down * torch.sin(angles)) + phases)
    noise = 0.8 * torch.randn(count, *SHAPE, generator=generator)
    return waves.unsqueeze(1) + noise, labels


def score(net: nn.Module, trial: Any) -> float:
    """Train for a few steps and return the accuracy on other stripes."""
    torch.set_num_threads(1)
    images, labels = draw_stripes(STEPS * BATCH, seed=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=trial.params["lr"], momentum=0.9)
    for batch in torch.arange(len(images)).split(BATCH):
        loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    others, other_labels = draw_stripes(500, seed=2)
    net.eval()
    with torch.no_grad():
        return float((net(others).argmax(1) == other_labels).float().mean())


def main() -> None:
    """Profile a device, search, and print the Pareto front."""
    profile = joulecast.profile(
        FAMILY, on="simulated:4", input_shape=SHAPE, batch=BATCH, points=24, store=":memory:"
    )
    result = joulecast.search(
        FAMILY,
        score,
        budget="60%",
        confidence=0.9,
        device=profile,
        steps=STEPS,
        batch=BATCH,
        input_shape=SHAPE,
        vary=VARY,
        trials=8,
    )
    print(
        f"{result.ruled_out_count} of {result.screened_count} candidates ruled out before training"
    )
    for trial in result.front:
        candidate = trial.candidate
        low_j, high_j = candidate.interval_j
        print(
            f"{candidate.network.name}: accuracy {100 * trial.score:.0f} % for "
            f"{candidate.energy_j:.2f} J ({candidate.estimate.provenance}, "
            f"95 % interval {low_j:.2f}–{high_j:.2f} J)"
        )


if __name__ == "__main__":
    main()
