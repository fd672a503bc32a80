"""Profile a device for your own net, and estimate the energy of training it.

    joulecast inspect examples/own_net.py:make_net
    joulecast profile examples/own_net.py:make_net --on cpu --seconds 120
    joulecast estimate examples/own_net.py:make_net --epochs 3 --samples 50000

The same from Python, on a simulated device, takes a few seconds:

    python examples/own_net.py
"""

from __future__ import annotations

import torch
from torch import nn

import joulecast


def make_net() -> tuple[nn.Module, torch.Tensor]:
    """Return the net and an example input; its first axis is the batch."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return net, torch.zeros(16, 3, 32, 32)


def main() -> None:
    """Inspect the net, profile a device, and estimate."""
    net, inputs = make_net()
    network = joulecast.inspect(net, inputs)
    print("layers:", ", ".join(layer.kind for layer in network.layers))
    profile = joulecast.profile(net, inputs, on="simulated:1", points=16, store=":memory:")
    estimate = joulecast.estimate(net, inputs, device=profile)
    low_j, high_j = estimate.interval_j
    print(
        f"{estimate.energy_j:.4f} J per step "
        f"({estimate.provenance}, 95 % interval {low_j:.4f}–{high_j:.4f} J)"
    )


if __name__ == "__main__":
    main()
