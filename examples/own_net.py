"""A net of your own: read it, learn a device for it, ask what training it costs.

    joulecast inspect examples/own_net.py:make_net
    joulecast profile examples/own_net.py:make_net --on cpu --seconds 120
    joulecast estimate examples/own_net.py:make_net --epochs 3 --samples 50000

or the same from Python, here on a simulated device so that it takes a few seconds:

    python examples/own_net.py
"""

from __future__ import annotations

import torch
from torch import nn

import joulecast


def make_net() -> tuple[nn.Module, torch.Tensor]:
    """The net and an example of what it is called on; the first axis is the batch."""
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
    """Read, learn, ask."""
    net, inputs = make_net()
    network = joulecast.read(net, inputs)
    print("layers:", ", ".join(layer.kind for layer in network.layers))
    profile = joulecast.profile(net, inputs, on="simulated:1", points=16, store=":memory:")
    answer = joulecast.estimate(net, inputs, device=profile)
    low, high = answer.interval_j
    print(f"{answer.energy_j:.4f} J a step, {low:.4f} to {high:.4f} J ({answer.provenance})")


if __name__ == "__main__":
    main()
