"""Kinds that move elements by index: bytes and kernels of forward and backward."""

from dataclasses import replace

import pytest

from joulecast.kinds import layer_work, make_layer
from joulecast.records import Setup

SETUP = Setup(batch=4)


def test_gradient_of_an_index_fills_the_input_with_zeros() -> None:
    small = make_layer("index", fn="index", axes=(0,), shape=(10, 8), out=(5, 8))
    large = make_layer("index", fn="index", axes=(0,), shape=(100, 8), out=(5, 8))
    one, two = layer_work(small, SETUP), layer_work(large, SETUP)
    assert one.forward == two.forward
    assert two.backward.size_bytes - one.backward.size_bytes == 4 * 90 * 8 * 4


def test_indices_across_samples_are_not_shared() -> None:
    shared = make_layer("index", fn="index", axes=(0,), shape=(10, 8), out=(5, 8))
    own = make_layer("index", fn="index", axes=(0,), across=1, shape=(10, 8), out=(5, 8))
    sizes = [layer_work(layer, SETUP).forward.size_bytes for layer in (shared, own)]
    assert sizes[1] - sizes[0] == (4 - 1) * 5 * 8


@pytest.mark.parametrize("kind", ["index", "sort", "slice", "gradient_copy", "scatter"])
def test_no_gradient_no_backward(kind: str) -> None:
    sizes = {"fn": kind, "shape": (16, 8), "out": (2, 8), "source": (2, 8)}
    wanted = dict.fromkeys(("slice", "gradient_copy"), ("shape", "out"))
    wanted |= {"scatter": ("fn", "shape", "source")}
    names = wanted.get(kind, ("fn", "shape", "out"))
    layer = make_layer(kind, **{name: sizes[name] for name in names})
    assert layer_work(layer, SETUP).backward.size_bytes > 0
    assert layer_work(replace(layer, input_grad=False), SETUP).backward.size_bytes == 0


@pytest.mark.parametrize(
    ("shape", "out", "moved"),
    [((3, 4, 8), (4, 8), 2 * 96), ((4, 8), (8, 4), 2 * 32), ((2, 8), (2, 3, 8), 16 + 48)],
)
def test_copied_gradient_is_read_and_written(shape, out, moved) -> None:
    work = layer_work(make_layer("gradient_copy", shape=shape, out=out), SETUP)
    assert work.forward.size_bytes == 0
    assert work.backward.size_bytes == 4 * moved * 4


def test_scatter_out_of_place_copies_its_target() -> None:
    layer = make_layer("scatter", fn="scatter_add", shape=(16, 8), source=(2, 8))
    copied = make_layer("scatter", fn="scatter_add", copies=1, shape=(16, 8), source=(2, 8))
    one, two = (layer_work(each, SETUP).forward for each in (layer, copied))
    assert two.size_bytes - one.size_bytes == 2 * 4 * 16 * 8 * 4
    assert (one.launches, two.launches) == (1, 2)
