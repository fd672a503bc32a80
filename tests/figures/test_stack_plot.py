"""Plots of networks with more and more equal layers."""

import pytest

from figures.example_plots import STACKS, list_marks
from joulecast.errors import InputError
from joulecast.figures import plot_layer_stacks
from joulecast.figures.marks import Line, Points


def test_a_stack_has_measurements_a_line_and_estimates():
    plot = plot_layer_stacks(STACKS)
    lines = {mark.name: mark for mark in list_marks(plot, Line)}
    assert lines["straight line"].x == (0.0, 2.0) and lines["straight line"].y == (0.2, 0.4)
    points = {mark.name: mark for mark in list_marks(plot, Points)}
    assert points["whole network"].low == (0.19, 0.3, 0.39)
    assert points["neuralpower"].y == (0.3, 0.5, 0.7)
    assert "2 layers" in points["whole network"].hover_texts[-1]


def test_something_must_be_stacked():
    with pytest.raises(InputError, match="stack of layers"):
        plot_layer_stacks([])
