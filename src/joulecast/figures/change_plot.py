"""Plot what changed: the energy of each layer before and after, the largest saving first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.figures.marks import HorizontalBars
from joulecast.figures.plot import Axis, Caption, Panel, Plot, make_plot, require_data
from joulecast.units import format_energy
from joulecast.views.style import BLUE, GREY

# More rows cannot be read: the others are summed.
_MOST_LAYERS = 24
_HEIGHT = 0.36


@dataclass(frozen=True)
class ChangedLayer:
    """The energy of a layer before and after a change, and what is said about it."""

    name: str
    before_j: float
    after_j: float
    hover_text: str = ""


def plot_layer_changes(
    layers: Sequence[ChangedLayer], caption: Caption = Caption(), step: str = "step"
) -> Plot:
    """Plot two bars for each layer, in the order of the network.

    Args:
        layers: The layers; of many, those that save least become one row.
        caption: Title and provenance.
        step: What one step is called.
    """
    require_data(layers, "layer")
    rows = _choose_rows(layers)[::-1]
    places = range(len(rows))
    texts = tuple(row.hover_text or _describe(row) for row in rows)
    before = HorizontalBars(
        "before",
        (0.0,) * len(rows),
        tuple(row.before_j for row in rows),
        tuple(place + _HEIGHT / 2 for place in places),
        GREY,
        _HEIGHT,
        texts,
    )
    after = HorizontalBars(
        "after",
        (0.0,) * len(rows),
        tuple(row.after_j for row in rows),
        tuple(place - _HEIGHT / 2 for place in places),
        BLUE,
        _HEIGHT,
        texts,
    )
    x = Axis(f"Energy per {step}", "J", True, low=0.0)
    y = Axis("", categories=tuple(row.name for row in rows))
    return make_plot((Panel(x, y, (before, after)),), caption, "Energy by layer")


def _choose_rows(layers: Sequence[ChangedLayer]) -> list[ChangedLayer]:
    if len(layers) <= _MOST_LAYERS:
        return list(layers)
    ranked = sorted(layers, key=lambda one: one.after_j - one.before_j)
    top = set(map(id, ranked[: _MOST_LAYERS - 1]))
    rest = [one for one in layers if id(one) not in top]
    before_j, after_j = sum(one.before_j for one in rest), sum(one.after_j for one in rest)
    other = ChangedLayer(f"other {len(rest)} layers", before_j, after_j)
    return [*(one for one in layers if id(one) in top), other]


def _describe(row: ChangedLayer) -> str:
    return f"{row.name}: {format_energy(row.before_j)} before, {format_energy(row.after_j)} after"
