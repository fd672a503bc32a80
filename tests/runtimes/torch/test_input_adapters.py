"""Layers that concatenate inputs run alone at any width, divisible by their number or not."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.kinds import input_shape, make_layer, make_op, output_shape
from joulecast.records import Device, Layer, Network, Setup
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.inputs import fit_channels, make_empty_input
from joulecast.runtimes.torch.losses import mean_square_loss
from joulecast.runtimes.torch.net_reader import read_net
from joulecast.runtimes.torch.runtime import TorchRuntime, draw_inputs
from joulecast.variants import (
    Part,
    make_isolated_network,
    make_isolated_trial,
    make_variant,
    read_isolated_part,
)

FOUR = Setup(batch=4)
NORM, RELU = make_op("batch_norm"), make_op("elementwise", fn="relu")
CLASSES = make_layer("linear", cin=8, cout=5)
widths = st.integers(1, 120)
counts = st.integers(2, 25)
spaces = st.lists(st.integers(1, 4), max_size=3)


def make_concat(width: int, count: int, space: tuple[int, ...], fn: str = "concat") -> Layer:
    tail = (NORM, RELU) if fn == "concat" else (RELU,)
    layer = make_layer("elementwise", tail, fn=fn, shape=(width, *space))
    return replace(layer, reads=(1,) * count, join="concat")


def run_alone(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of a layer that runs alone, and the gradient of its input."""
    network = make_isolated_network(Part("hidden", (layer,)))
    x = draw_inputs(network, FOUR, torch.Generator().manual_seed(1))
    out = build_net(network)(x)
    out.sum().backward()
    assert x.grad is not None
    return out, x.grad


@settings(deadline=None, max_examples=20)
@given(widths, counts, spaces)
def test_concatenation_has_the_channels_of_the_layer(
    width: int, count: int, space: list[int]
) -> None:
    layer = make_concat(width, count, tuple(space))
    out, _ = run_alone(layer)
    assert tuple(out.shape[1:]) == output_shape(layer)


@settings(deadline=None, max_examples=20)
@given(widths, counts, widths, st.sampled_from(["concat along 1", "concat along 2"]))
def test_concatenation_along_other_axes_has_the_right_shape(
    width: int, count: int, size: int, fn: str
) -> None:
    layer = make_concat(width, count, (size,), fn)
    out, gradient = run_alone(layer)
    assert tuple(out.shape[1:]) == output_shape(layer)
    assert bool(gradient.any())


@settings(deadline=None, max_examples=10)
@given(widths, counts)
def test_variant_contains_a_concatenation_of_any_width(width: int, count: int) -> None:
    part = Part("hidden", (make_concat(width, count, (3, 3)),))
    network = Network((make_layer("conv2d", cin=3, cout=8, space=(5, 5), kernel=3), CLASSES))
    variant = make_variant(part, network)
    x = torch.randn(FOUR.batch, *variant.input.shape)
    assert tuple(build_net(variant)(x).shape[1:]) == output_shape(variant.layers[-1])


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 80))
def test_inputs_keep_their_order_and_only_the_last_is_cut(sizes: list[int], wanted: int) -> None:
    inputs = [torch.full((2, size), float(index)) for index, size in enumerate(sizes)]
    fitted = fit_channels(inputs, wanted)
    row = [index for index, size in enumerate(sizes) for _ in range(size)]
    expected = [row[i % len(row)] for i in range(wanted)]
    assert torch.cat(fitted, dim=1)[0].tolist() == expected
    assert [x.shape[1] for x in fitted[:-1]] == [
        sizes[i % len(sizes)] for i in range(len(fitted) - 1)
    ]


@pytest.mark.parametrize("count", [2, 5])
def test_uneven_concatenation_costs_as_much_as_an_even_one(count: int) -> None:
    even = count_bytes(make_concat(40 * count, count, (7, 7))) / (40 * count)
    uneven = count_bytes(make_concat(40 * count + 1, count, (7, 7))) / (40 * count + 1)
    assert uneven == pytest.approx(even, rel=0.02)


def count_bytes(layer: Layer) -> float:
    network = make_isolated_network(Part("hidden", (layer,)))
    with torch.device("meta"):
        net, x = build_net(network), make_empty_input(network, 4).requires_grad_()
    totals = read_net(net, x, mean_square_loss).totals
    assert totals is not None
    return totals.size_bytes


def test_concatenation_of_many_inputs_trains_alone() -> None:
    layer = make_concat(960, 23, (2, 2))
    trial = make_isolated_trial(Part("hidden", (layer,)), FOUR)
    part = read_isolated_part(trial)
    assert part is not None
    assert input_shape(part.layers[0]) == (960, 2, 2)
    TorchRuntime("cpu", Device("here")).prepare(trial).close()
