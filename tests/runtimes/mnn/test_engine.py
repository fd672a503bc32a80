"""Variables of MNN, and the formats that images have."""

import pytest

pytest.importorskip("MNN")

from joulecast.runtimes.mnn.engine import (
    ENGINE,
    draw_uniform,
    lift_sizes,
    make_filled,
    to_image,
    to_plain,
)


def test_draws_depend_on_the_seed_alone():
    first, again, other = (draw_uniform([4, 5], 0.5, seed).read().copy() for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert 0.25 < abs(first).max() <= 0.5


def test_draw_stays_when_it_is_read_again():
    # A graph would draw anew.
    drawn = draw_uniform([8], 1.0, 0)
    assert (drawn.read() == (drawn + make_filled(0.0, [8])).read()).all()


def test_signal_becomes_an_image_of_one_row_and_back():
    signal = draw_uniform([2, 3, 8], 1.0, 1)
    image = to_image(signal, (3, 8))
    assert image.shape == [2, 3, 1, 8]
    assert image.data_format == ENGINE.NC4HW4
    assert to_image(image, (3, 8)) is image
    assert (to_plain(image, (3, 8)).read() == signal.read()).all()


def test_sizes_of_signals_are_lifted():
    assert lift_sizes((5,), 1) == [1, 5]
    assert lift_sizes((3, 5), 1) == [3, 5]
