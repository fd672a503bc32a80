"""Channels-last tensors are read as such, and rebuilt and isolated layers use the same format."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from joulecast.families import FAMILIES, make_family
from joulecast.operators import check_network
from joulecast.records import Device, Network, Setup, name_layout
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.inputs import (
    is_channels_last,
    make_empty_input,
    resize_batch,
    to_channels_last,
)
from joulecast.torch_nets.losses import mean_square_loss
from joulecast.torch_nets.net_reader import count_step_totals, read_net
from joulecast.torch_nets.runtime import TorchRuntime, draw_inputs
from joulecast.variants import (
    REPEATED,
    make_isolated_network,
    make_isolated_trial,
    make_variant,
    read_isolated_block,
    read_variant,
    split_blocks,
    split_network,
)
from torch_nets.made_net import MadeNet

BATCH = 3
WATCHED = (nn.Conv2d, nn.LayerNorm, nn.Linear)


def permute(*order: int) -> nn.Module:
    """Return a module that moves channels to the last axis, or back to the first."""
    return MadeNet(lambda net, x: x.permute(order))


class ConvNeXtBlock(MadeNet):
    """A depthwise convolution, then an MLP over channels on the last axis."""

    def __init__(self, width: int, scaled: bool) -> None:
        inside = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            permute(0, 2, 3, 1),
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            permute(0, 3, 1, 2),
        )
        scale = nn.Parameter(torch.full((width, 1, 1), 0.1)) if scaled else None
        super().__init__(add_scaled, inside=inside, scale=scale)


def add_scaled(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = net.inside(x)
    return x + (y if net.scale is None else net.scale * y)


def make_convnext(scaled: bool, *stage_end: nn.Module) -> nn.Module:
    """Return a stem with a channels-last norm, two blocks, the end of their stage and a head."""
    blocks = [ConvNeXtBlock(8, scaled), ConvNeXtBlock(8, scaled)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), *make_norm(8), *blocks, *stage_end, *head)


def make_norm(width: int) -> list[nn.Module]:
    return [permute(0, 2, 3, 1), nn.LayerNorm(width), permute(0, 3, 1, 2)]


def concat_densely(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Concatenate the input with a convolution of it."""
    return torch.relu(net.norm(torch.cat((x, net.conv(x)), dim=1)))


def make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        MadeNet(concat_densely, conv=nn.Conv2d(6, 4, 1), norm=nn.BatchNorm2d(10)),
        nn.Conv2d(10, 10, 3, groups=10),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(90, 5),
    )


CONVERTED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (make_cnn, (3, 16, 16)),
    "gray images": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Dropout(0.5)),
        (1, 6, 6),
    ),
    "volumes": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.ConvTranspose3d(4, 3, 2)
        ),
        (2, 5, 6, 7),
    ),
}


def convert(net: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    memory_format = torch.channels_last if len(shape) == 3 else torch.channels_last_3d
    return net.to(memory_format=memory_format)  # type: ignore[call-overload]


def read_back(network: Network) -> Network:
    return read_net(build_net(network), make_empty_input(network, BATCH), mean_square_loss)


@pytest.mark.parametrize("with_input", [True, False])
@pytest.mark.parametrize("name", CONVERTED)
def test_converted_network_reads_back_the_same(name: str, with_input: bool) -> None:
    make, shape = CONVERTED[name]
    x = torch.randn(BATCH, *shape)
    network = read_net(convert(make(), shape), to_channels_last(x) if with_input else x)
    assert network.buildable
    assert network.layers[0].channels_last == with_input
    assert all(map(name_layout, network.layers[:-1]))
    assert read_back(network) == network
    assert Network.from_dict(network.to_dict()) == network
    check_network(network)


def test_memory_format_distinguishes_networks_but_not_their_flops() -> None:
    plain = read_net(make_cnn(), torch.randn(BATCH, 3, 16, 16))
    net = convert(make_cnn(), (3, 16, 16))
    last = read_net(net, to_channels_last(torch.randn(BATCH, 3, 16, 16)))
    usual = [
        replace(layer, channels_last=False, channels_last_weights=False) for layer in last.layers
    ]
    assert last != plain
    assert tuple(usual) == plain.layers
    assert count_step_totals(last, BATCH).flops == count_step_totals(plain, BATCH).flops


def test_contiguous_networks_do_not_mention_channels_last() -> None:
    networks = [make_family(name) for name in FAMILIES]
    networks += [read_net(make_cnn(), torch.randn(BATCH, 3, 16, 16))]
    assert not any("channels_last" in json.dumps(network.to_dict()) for network in networks)


def test_permuted_images_are_channels_last() -> None:
    network = read_net(make_convnext(False), torch.randn(BATCH, 3, 32, 32))
    assert network.buildable
    assert read_back(network) == network
    convs = [layer for layer in network.layers if layer.kind == "conv2d"]
    assert [layer.channels_last for layer in convs] == [False, True, True]
    assert not any(layer.channels_last_weights for layer in network.layers)
    assert not any(layer.channels_last for layer in network.layers if layer.kind == "linear")


def test_network_that_converts_an_activation_is_not_buildable() -> None:
    convert_to = MadeNet(lambda net, x: x.contiguous(memory_format=torch.channels_last))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), convert_to, nn.Conv2d(4, 4, 3))
    network = read_net(net, torch.randn(BATCH, 3, 9, 9))
    assert network.layers[-1].channels_last
    assert not network.buildable


def test_broadcast_operand_does_not_hide_the_format_of_the_image() -> None:
    def gate(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        image = net.gain * x.permute(0, 3, 1, 2)
        return image.mean((2, 3), keepdim=True).contiguous() * image

    net = MadeNet(gate, gain=nn.Parameter(torch.ones(1, 4, 1, 1)))
    network = read_net(net, torch.randn(BATCH, 5, 6, 4))
    products = [layer for layer in network.layers if layer.sizes["fn"] == "mul"]
    assert [layer.channels_last for layer in products] == [True, True]


# -- isolated layers --------------------------------------------------------------------------


def watch_strides(net: nn.Module, run: Callable[[], Any]) -> list[tuple[Any, ...]]:
    """Return the strides of each watched module's input and output gradient in one step."""
    seen: list[tuple[Any, ...]] = []

    def record(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        seen.append((type(module).__name__, args[0].shape, args[0].stride()))
        out.register_hook(lambda grad: seen.append(("gradient", grad.shape, grad.stride())))

    hooks = [m.register_forward_hook(record) for m in net.modules() if isinstance(m, WATCHED)]
    run()
    for hook in hooks:
        hook.remove()
    return seen


def test_isolated_block_has_the_strides_of_its_network() -> None:
    # The norm behind them returns a gradient in the format of the images.
    net = make_convnext(True, *make_norm(8))
    x = torch.randn(BATCH, 3, 32, 32)
    module = next(module for module in net if isinstance(module, ConvNeXtBlock))
    real = watch_strides(module, lambda: net(x).square().sum().backward())
    network = read_net(net, x)
    block = next(place.block for place in split_blocks(network) if place.block.role == REPEATED)
    runtime = TorchRuntime("cpu", Device("here"))
    step = runtime.prepare(make_isolated_trial(block, Setup(batch=BATCH)))
    alone = watch_strides(step.replicas[0].net, lambda: step.run(1))
    step.close()
    assert any(name == "Conv2d" for name, *_ in real)
    assert alone == real


def test_lost_views_neither_copy_nor_permute_images() -> None:
    def convolve_tokens(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Convolve between linear layers over tokens, with views that no kind describes."""
        image = net.into(x).transpose(1, 2).unflatten(2, (4, 5))
        return x + net.out(net.conv(image).flatten(2).transpose(1, 2))

    blocks = [
        MadeNet(
            convolve_tokens,
            into=nn.Linear(6, 8),
            out=nn.Linear(8, 6),
            conv=nn.Conv2d(8, 8, 3, padding=1, groups=8),
        )
        for _ in range(2)
    ]
    net = nn.Sequential(*blocks, nn.Linear(6, 3))
    x = torch.randn(BATCH, 20, 6)
    real = watch_strides(net[1], lambda: net(x).square().sum().backward())
    network = read_net(net, x)
    block = [place.block for place in split_blocks(network) if place.block.role == REPEATED][-1]
    alone = make_isolated_network(block)
    built = build_net(alone)
    data = draw_inputs(alone, Setup(batch=BATCH), torch.Generator())
    seen = watch_strides(built, lambda: built(data).square().sum().backward())
    assert any(name == "Conv2d" for name, *_ in real)
    assert seen == real


@pytest.mark.parametrize("name", ["images", "gray images"])
def test_isolated_layers_and_variants_have_the_stated_format(name: str) -> None:
    make, shape = CONVERTED[name]
    x = to_channels_last(torch.randn(BATCH, *shape))
    network = read_net(convert(make(), shape), x)
    for place in split_network(network):
        trial = make_isolated_trial(place.block, Setup(batch=BATCH))
        assert read_isolated_block(trial).layers == place.block.layers
        check_memory_formats(trial.network, 1)
        if set(place.block.layers[0].reads) == {1}:
            variant = make_variant(place.block, network)
            shown, *_ = read_variant(variant)
            assert shown.layers == place.block.layers
            check_memory_formats(variant, 2 if shown.role == "hidden" else 1)


def check_memory_formats(network: Network, count: int) -> None:
    """Check that the first layers have the same memory formats when they are read back."""
    again = read_back(network)
    assert [*map(name_layout, again.layers[:count])] == [*map(name_layout, network.layers[:count])]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_resized_batch_keeps_its_memory_format(device: str) -> None:
    x = to_channels_last(torch.zeros(2, 3, 4, 4, device=device))
    assert is_channels_last(resize_batch(x, 5))
    assert not is_channels_last(resize_batch(x.contiguous(), 5))
