"""Images that lie channels last: reading sees it, and what is rebuilt or isolated lies the same."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from joulecast.families import FAMILIES, make_family
from joulecast.kinds import check_network
from joulecast.records import Device, Network, Setup, name_layout
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.independent_count import count_step_totals
from joulecast.runtimes.torch.load import resize_batch
from joulecast.runtimes.torch.losses import mean_square_loss
from joulecast.runtimes.torch.memory_format import (
    is_channels_last,
    make_empty_input,
    to_channels_last,
)
from joulecast.runtimes.torch.net_reader import read_net
from joulecast.runtimes.torch.runtime import TorchRuntime, draw_inputs
from joulecast.variants import (
    BLOCK,
    make_isolated_network,
    make_isolated_trial,
    make_variant,
    read_isolated_part,
    read_variant,
    split_blocks,
    split_network,
)

BATCH = 3
WATCHED = (nn.Conv2d, nn.LayerNorm, nn.Linear)


class Swap(nn.Module):
    """Channels to the back, or from there to the front."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(self.order)


class NextBlock(nn.Module):
    """A depthwise convolution, then a perceptron over channels that stand last."""

    def __init__(self, width: int, scaled: bool) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            Swap(0, 2, 3, 1),
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            Swap(0, 3, 1, 2),
        )
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1)) if scaled else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inside(x)
        return x + (y if self.scale is None else self.scale * y)


def make_next(scaled: bool, *stage_end: nn.Module) -> nn.Module:
    """A stem whose norm turns its images round, two blocks, what ends their stage, and a head."""
    blocks = [NextBlock(8, scaled), NextBlock(8, scaled)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), *make_norm(8), *blocks, *stage_end, *head)


def make_norm(width: int) -> list[nn.Module]:
    return [Swap(0, 2, 3, 1), nn.LayerNorm(width), Swap(0, 3, 1, 2)]


class Dense(nn.Module):
    """What was there and what was made of it, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 4, 1)
        self.norm = nn.BatchNorm2d(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(torch.cat((x, self.conv(x)), dim=1)))


def make_images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Dense(),
        nn.Conv2d(10, 10, 3, groups=10),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(90, 5),
    )


def make_gray() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Dropout(0.5))


def make_volumes() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.ConvTranspose3d(4, 3, 2)
    )


CONVERTED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (make_images, (3, 16, 16)),
    "gray images": (make_gray, (1, 6, 6)),
    "volumes": (make_volumes, (2, 5, 6, 7)),
}


def convert(net: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    form = torch.channels_last if len(shape) == 3 else torch.channels_last_3d
    return net.to(memory_format=form)  # type: ignore[call-overload]


def read_back(network: Network) -> Network:
    return read_net(build_net(network), make_empty_input(network, BATCH), mean_square_loss)


@pytest.mark.parametrize("data_too", [True, False])
@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_net_reads_back_from_what_is_built(name: str, data_too: bool) -> None:
    make, shape = CONVERTED[name]
    x = torch.randn(BATCH, *shape)
    network = read_net(convert(make(), shape), to_channels_last(x) if data_too else x)
    assert network.buildable
    assert network.layers[0].channels_last == data_too
    assert all(map(name_layout, network.layers[:-1]))
    assert read_back(network) == network
    assert Network.from_dict(network.to_dict()) == network
    check_network(network)


def test_layouts_are_part_of_what_a_net_is_and_change_no_cost() -> None:
    plain = read_net(make_images(), torch.randn(BATCH, 3, 16, 16))
    net = convert(make_images(), (3, 16, 16))
    last = read_net(net, to_channels_last(torch.randn(BATCH, 3, 16, 16)))
    usual = [
        replace(layer, channels_last=False, channels_last_weights=False) for layer in last.layers
    ]
    assert last != plain
    assert tuple(usual) == plain.layers
    assert count_step_totals(last, BATCH).flops == count_step_totals(plain, BATCH).flops


def test_what_lies_as_usual_says_nothing_about_it() -> None:
    networks = [make_family(name) for name in FAMILIES]
    networks += [read_net(make_images(), torch.randn(BATCH, 3, 16, 16))]
    assert not any("channels_last" in json.dumps(network.to_dict()) for network in networks)


def test_permutes_turn_images_round_without_a_conversion() -> None:
    network = read_net(make_next(False), torch.randn(BATCH, 3, 32, 32))
    assert network.buildable
    assert read_back(network) == network
    convs = [layer for layer in network.layers if layer.kind == "conv2d"]
    assert [layer.channels_last for layer in convs] == [False, True, True]
    assert not any(layer.channels_last_weights for layer in network.layers)
    assert not any(layer.channels_last for layer in network.layers if layer.kind == "linear")


def test_a_net_that_converts_what_it_computes_is_seen_and_not_rebuilt() -> None:
    class Convert(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.contiguous(memory_format=torch.channels_last)

    net = nn.Sequential(nn.Conv2d(3, 4, 3), Convert(), nn.Conv2d(4, 4, 3))
    network = read_net(net, torch.randn(BATCH, 3, 9, 9))
    assert network.layers[-1].channels_last
    assert not network.buildable


def test_what_is_spread_over_an_image_does_not_hide_how_it_lies() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1, 4, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            image = self.gain * x.permute(0, 3, 1, 2)
            return image.mean((2, 3), keepdim=True).contiguous() * image

    network = read_net(Gate(), torch.randn(BATCH, 5, 6, 4))
    products = [layer for layer in network.layers if layer.sizes["fn"] == "mul"]
    assert [layer.channels_last for layer in products] == [True, True]


# -- what runs alone --------------------------------------------------------------------------


def watch_strides(net: nn.Module, run: Callable[[], Any]) -> list[tuple[Any, ...]]:
    """Strides of what each watched module reads and of the gradients it is given, in a step."""
    seen: list[tuple[Any, ...]] = []

    def note(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        seen.append((type(module).__name__, args[0].shape, args[0].stride()))
        out.register_hook(lambda grad: seen.append(("gradient", grad.shape, grad.stride())))

    hooks = [m.register_forward_hook(note) for m in net.modules() if isinstance(m, WATCHED)]
    run()
    for hook in hooks:
        hook.remove()
    return seen


def test_an_isolated_block_lies_in_memory_as_it_does_in_its_net() -> None:
    # The norm behind them gives a gradient that lies as the images do.
    net = make_next(True, *make_norm(8))
    x = torch.randn(BATCH, 3, 32, 32)
    block = next(module for module in net if isinstance(module, NextBlock))
    real = watch_strides(block, lambda: net(x).square().sum().backward())
    network = read_net(net, x)
    part = next(place.part for place in split_blocks(network) if place.part.role == BLOCK)
    runtime = TorchRuntime("cpu", Device("here"))
    step = runtime.prepare(make_isolated_trial(part, Setup(batch=BATCH)))
    alone = watch_strides(step.replicas[0].net, lambda: step.run(1))
    step.close()
    assert any(name == "Conv2d" for name, *_ in real)
    assert alone == real


def test_lost_views_neither_copy_images_nor_turn_them_round() -> None:
    class Tokens(nn.Module):
        """A convolution between perceptrons over tokens; its views are no rows of the table."""

        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(6, 8), nn.Linear(8, 6)
            self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            image = self.into(x).transpose(1, 2).unflatten(2, (4, 5))
            return x + self.out(self.conv(image).flatten(2).transpose(1, 2))

    net = nn.Sequential(Tokens(), Tokens(), nn.Linear(6, 3))
    x = torch.randn(BATCH, 20, 6)
    real = watch_strides(net[1], lambda: net(x).square().sum().backward())
    network = read_net(net, x)
    part = [place.part for place in split_blocks(network) if place.part.role == BLOCK][-1]
    alone = make_isolated_network(part)
    built = build_net(alone)
    data = draw_inputs(alone, Setup(batch=BATCH), torch.Generator())
    seen = watch_strides(built, lambda: built(data).square().sum().backward())
    assert any(name == "Conv2d" for name, *_ in real)
    assert seen == real


@pytest.mark.parametrize("name", ["images", "gray images"])
def test_layers_alone_and_in_variants_lie_as_they_say(name: str) -> None:
    make, shape = CONVERTED[name]
    x = to_channels_last(torch.randn(BATCH, *shape))
    network = read_net(convert(make(), shape), x)
    for place in split_network(network):
        trial = make_isolated_trial(place.part, Setup(batch=BATCH))
        shown = read_isolated_part(trial)
        assert shown is not None
        assert shown.layers == place.part.layers
        assert list_layouts(read_back(trial.network), 1) == list_layouts(trial.network, 1)
        if set(place.part.layers[0].reads) == {1}:
            variant = make_variant(place.part, network)
            shown = (read_variant(variant) or (None,))[0]
            assert shown is not None
            assert shown.layers == place.part.layers
            subject = 2 if shown.role == "hidden" else 1
            assert list_layouts(read_back(variant), subject) == list_layouts(variant, subject)


def list_layouts(network: Network, first: int) -> list[tuple[str, ...]]:
    return [name_layout(layer) for layer in network.layers[:first]]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_another_batch_lies_as_the_first(device: str) -> None:
    x = to_channels_last(torch.zeros(2, 3, 4, 4, device=device))
    assert is_channels_last(resize_batch(x, 5))
    assert not is_channels_last(resize_batch(x.contiguous(), 5))
