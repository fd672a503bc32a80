"""Test the work that is read where samples are folded, or share a matrix that layers compute."""

import pytest
import torch
from torch import nn

from joulecast.kinds import layer_work
from joulecast.records import Layer, Network, Setup
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.net_reader import read_net
from joulecast.variants import make_isolated_network, split_network

SAMPLES, FRAMES = 3, 5
THREE = Setup(SAMPLES)


def flops_share(network: Network) -> float:
    """Return the FLOPs of the layers over those that were traced."""
    assert network.totals is not None
    works = [layer_work(layer, THREE) for layer in network.layers]
    return sum(one.forward.flops + one.backward.flops for one in works) / network.totals.flops


def bytes_share(network: Network) -> float:
    assert network.totals is not None
    works = [layer_work(layer, THREE) for layer in network.layers]
    moved = sum(one.forward.size_bytes + one.backward.size_bytes for one in works)
    return moved / network.totals.size_bytes


class Frames(nn.Module):
    """Convolutions over frames that are folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 2, 2)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x.flatten(0, 1)).mean((2, 3))
        return self.head(features.view(len(x), FRAMES, 4).mean(1))


def test_frames_in_the_batch_are_counted_in_one_call():
    network = read_net(Frames(), torch.randn(SAMPLES, FRAMES, 3, 8, 8))
    first = network.layers[0]
    assert first.sizes["space"] == (FRAMES * 8, 8)
    assert {layer.calls for layer in network.layers} == {1}
    assert flops_share(network) == pytest.approx(1.0, abs=0.02)


class Channels(nn.Module):
    """Attention inside each of several sequences of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        each = x.flatten(0, 1)
        return self.attention(each, each, each, need_weights=False)[0]


def test_sequences_in_the_batch_of_attention_are_windows():
    network = read_net(Channels(), torch.randn(SAMPLES, FRAMES, 7, 16))
    (layer,) = (one for one in network.layers if one.kind == "attention")
    assert layer.sizes["windows"] == FRAMES
    assert flops_share(network) == pytest.approx(1.0, abs=0.02)


def run_alone(network: Network, layer: Layer) -> torch.Tensor:
    part = next(one.part for one in split_network(network) if one.part.layers[0].kind == layer.kind)
    alone = make_isolated_network(part)
    out: torch.Tensor = build_net(alone)(torch.randn(SAMPLES, *alone.input.shape))
    return out


def test_windowed_attention_runs_alone():
    network = read_net(Channels(), torch.randn(SAMPLES, FRAMES, 7, 16))
    (layer,) = (one for one in network.layers if one.kind == "attention")
    assert run_alone(network, layer).shape == (SAMPLES, FRAMES, 7, 16)


class Towers(nn.Module):
    """Similarities of every sample with all others."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.query(x) @ self.key(x).T


def test_matrix_that_all_samples_share_is_a_weight_without_update():
    inputs = torch.randn(SAMPLES, 8)
    network = read_net(Towers(), inputs)
    product = network.layers[-1]
    assert (product.kind, product.sizes["cin"], product.sizes["cout"]) == ("linear", 6, SAMPLES)
    assert product.tied and product.trains and product.input_grad
    assert not layer_work(product, THREE).update.size_bytes
    assert flops_share(network) == pytest.approx(1.0, abs=0.02)
    assert bytes_share(network) == pytest.approx(1.0, abs=0.2)


class FourierFeatures(nn.Module):
    """A product with a matrix that is not learned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.randn(8, 32))
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sin(x @ self.matrix))


def test_fixed_matrix_gets_no_gradient():
    network = read_net(FourierFeatures(), torch.randn(SAMPLES, 8))
    product = network.layers[0]
    assert product.kind == "linear"
    assert not product.trains
    assert flops_share(network) == pytest.approx(1.0, abs=0.02)
