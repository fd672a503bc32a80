"""Plots of pruned networks: how they learn, and what they cost."""

import pytest

from figures.example_plots import ENERGY_SHARES, LEARNING, list_marks
from joulecast.errors import InputError
from joulecast.figures import plot_pruned_networks
from joulecast.figures.marks import Line, Points


def test_every_seed_is_a_point_beside_the_budget():
    plot = plot_pruned_networks(LEARNING, ENERGY_SHARES, 0.5)
    points = {mark.name: mark for mark in list_marks(plot, Points)}
    assert points["random, subtractive"].y == (49.0, 51.0)
    assert points["random, FLOPs"].x == pytest.approx((0.72, 1.28)), "side by side"
    (budget,) = [mark for mark in list_marks(plot, Line) if mark.name == "budget"]
    assert budget.y == (50.0, 50.0) and budget.is_dashed


def test_losses_and_accuracies_have_a_panel_each():
    loss, accuracy, _ = plot_pruned_networks(LEARNING, ENERGY_SHARES, 0.5).panels
    assert [mark.y for mark in loss.marks] == [(0.6, 0.3), (0.6, 0.4)]
    assert accuracy.marks[0].y == (70.0, 90.0)


def test_something_must_be_pruned():
    with pytest.raises(InputError, match="pruned network"):
        plot_pruned_networks(LEARNING, {"random, FLOPs": ()}, 0.5)
