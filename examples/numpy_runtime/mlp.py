"""A network that NumPy can train."""

from torch import nn


def make_mlp(width=64):
    """Return two hidden layers for samples of 32 numbers."""
    return nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10)
    )
