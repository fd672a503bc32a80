"""Energy by layer before and after: in order, the small ones together."""

import pytest

from figures.example_plots import list_marks
from joulecast.errors import InputError
from joulecast.figures import ChangedLayer, plot_layer_changes
from joulecast.figures.marks import HorizontalBars


def test_first_layer_is_on_top_with_both_bars():
    plot = plot_layer_changes([ChangedLayer("conv1", 2.0, 1.0), ChangedLayer("fc", 0.5, 0.4)])
    (panel,) = plot.panels
    assert panel.y.categories == ("fc", "conv1")
    before, after = list_marks(plot, HorizontalBars)
    assert (before.end, after.end) == ((0.5, 2.0), (0.4, 1.0))
    gaps = [b - a for a, b in zip(after.y, before.y, strict=True)]
    assert gaps == pytest.approx([before.height] * 2)
    assert "2.00 J before" in before.hover_texts[1]


def test_layers_that_save_least_become_one_row():
    layers = [ChangedLayer(f"l{i}", 10.0, 10.0 - i / 10) for i in range(40)]
    plot = plot_layer_changes(layers)
    names = plot.panels[0].y.categories[::-1]
    assert names[-1] == "other 17 layers" and names[0] == "l17"
    before, after = list_marks(plot, HorizontalBars)
    assert before.end[0] == pytest.approx(170.0)
    assert sum(after.end) == pytest.approx(sum(one.after_j for one in layers))
    with pytest.raises(InputError, match="layer"):
        plot_layer_changes([])
