"""Stacked layers add up, whatever their number."""

import pytest

from figures.example_plots import BREAKDOWNS, list_marks
from joulecast.figures import NetworkBreakdown, plot_additivity
from joulecast.figures.marks import Bars


def test_layers_are_stacked_to_their_sum():
    bars = list_marks(plot_additivity(BREAKDOWNS), Bars)
    measured = next(one for one in bars if one.name == "measured network")
    stacks = [one for one in bars if one.base]
    for index, network in enumerate(BREAKDOWNS):
        total_j = sum(network.layer_energies_j.values())
        assert sum(one.y[index] for one in stacks) == pytest.approx(total_j)
        assert measured.y[index] == network.measured_j
        top = 0.0
        for one in stacks:
            assert one.base[index] == pytest.approx(top)
            top += one.y[index]


def test_small_layers_are_merged_and_none_is_lost():
    layers = {f"layer{i}": 0.1 + 0.01 * i for i in range(30)}
    plot = plot_additivity([NetworkBreakdown("deep", 7.0, layers)])
    stacks = [bars for bars in list_marks(plot, Bars) if bars.base]
    assert len(stacks) == 8
    assert stacks[-1].name == "23 smaller layers"
    assert sum(bars.y[0] for bars in stacks) == pytest.approx(sum(layers.values()))
    assert all(any(name in bars.hover_texts[0] for bars in stacks) for name in layers)


def test_networks_of_very_different_size_are_shown_as_shares():
    plot = plot_additivity(
        [NetworkBreakdown("small", 0.01, {"a": 0.009}), NetworkBreakdown("large", 9.0, {"a": 9.9})]
    )
    (panel,) = plot.panels
    assert panel.y.unit == "%"
    stack, measured = panel.marks
    assert measured.y == pytest.approx((100.0, 100.0))
    assert stack.y == pytest.approx((90.0, 110.0))
