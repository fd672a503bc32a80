"""Plots of energy against channels, FLOPs and time."""

from figures.example_plots import CHANNELS, SIZES
from joulecast.figures import (
    StepMeasurement,
    plot_channel_costs,
    plot_energy_by_size,
    plot_energy_by_time,
)


def test_sizes_are_sorted_by_channels_and_flops():
    by_channels, by_flops = plot_energy_by_size(SIZES).panels
    assert by_channels.marks[-1].x == (8, 16, 32, 64)
    proportional = by_flops.marks[0]
    ratios = {round(y / x, 15) for x, y in zip(proportional.x, proportional.y, strict=True)}
    assert len(ratios) == 1
    assert proportional.y[-1] == by_flops.marks[-1].y[-1]


def test_subtitle_shows_the_correlation_of_time_and_energy():
    series = {
        "a": [StepMeasurement(str(i), i, 2.0 * i) for i in (1, 2, 3)],
        "b": [StepMeasurement("only", 1, 1)],
    }
    assert plot_energy_by_time(series).caption.subtitle == "a: r = 1.00"


def test_axes_say_what_a_step_is():
    points = {"a": [StepMeasurement(str(i), i, 2.0 * i) for i in (1, 2, 3)]}
    (panel,) = plot_energy_by_time(points, step="inference").panels
    assert (panel.x.title, panel.y.title) == ("Duration per inference", "Energy per inference")


def test_held_out_channels_have_their_own_series():
    (panel,) = plot_channel_costs(CHANNELS).panels
    by_name = {mark.name: mark for mark in panel.marks}
    assert by_name["measured"].x == (1.0, 64.0)
    assert by_name["measured, held out"].y == (0.2,)
    assert by_name["95 % interval"].low == (0.09, 0.17, 0.48)
