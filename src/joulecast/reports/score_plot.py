"""Plot the scores of devices against their price and their performance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from joulecast.errors import InputError
from joulecast.features.device_score import LETTER_COLOURS, LETTERS, DeviceScore
from joulecast.figures import Axis, Caption, Plot
from joulecast.figures.marks import Label, Mark, Points
from joulecast.figures.plot import Panel, fit_axis, make_plot
from joulecast.records import weakest_provenance
from joulecast.units import format_money
from joulecast.views.style import GREY

Value = Callable[[DeviceScore], float | None]
_BEST_PCS = 100.0
# Above the highest point, for its name.
_HEADROOM = 1.1
_SCORES: tuple[tuple[str, Value], ...] = (
    ("PCS", lambda score: score.pcs),
    ("IECS (our reading)", lambda score: score.iecs),
)


def plot_scores(scores: Sequence[DeviceScore]) -> dict[str, Plot]:
    """Return the plots of both scores by what they are plotted against.

    Raises:
        InputError: Prices have several currencies, or there is nothing to plot.
    """
    currencies = {one.facts.currency for one in scores if one.facts.price is not None}
    if len(currencies) > 1:
        named = ", ".join(sorted(one or "none" for one in currencies))
        raise InputError(f"prices are in {named}: give all of them in one currency")
    unit = next(iter(currencies), "")
    quantities: dict[str, tuple[str, str, Value]] = {
        "price": ("Price", unit, lambda score: score.facts.price),
        "performance": ("Performance", "inferences/s", lambda score: score.inferences_per_s),
    }
    plots = {}
    for name, (title, unit, value) in quantities.items():
        panels = _draw_panels(scores, (title, unit), value)
        if panels:
            provenance = weakest_provenance(one.provenance for one in scores)
            plots[name] = make_plot(
                panels, Caption(provenance=provenance), f"Scores against {title.lower()}"
            )
    if not plots:
        raise InputError(
            "there is nothing to plot: give a TDP for PCS, or devices with measured energies"
        )
    return plots


def _draw_panels(
    scores: Sequence[DeviceScore], title: tuple[str, str], value: Value
) -> list[Panel]:
    panels = []
    for score_title, read_score in _SCORES:
        points = [
            (one, x, y)
            for one in scores
            if (x := value(one)) is not None and (y := read_score(one)) is not None
        ]
        if points:
            x_axis = fit_axis(title[0], [x for _, x, _ in points], title[1], starts_at_zero=True)
            y_axis = _fit_score_axis(score_title, [y for _, _, y in points])
            panels.append(Panel(x_axis, y_axis, tuple(_mark_points(points))))
    return panels


def _fit_score_axis(title: str, values: Sequence[float]) -> Axis:
    high = _BEST_PCS if title == "PCS" else _HEADROOM * max(values)
    return Axis(title, low=min(0.0, *values), high=high)


def _mark_points(points: Sequence[tuple[DeviceScore, float, float]]) -> list[Mark]:
    """Return the points in the colours of their labels."""
    marks: list[Mark] = []
    for score, x, y in points:
        colour = LETTER_COLOURS[LETTERS.index(score.label)] if score.label else GREY
        name = f"{score.name} ({score.label or 'no label'})"
        marks.append(Points(name, (x,), (y,), colour, hover_texts=(_describe(score),)))
        marks.append(Label(name, (x,), (y,), colour))
    return marks


def _describe(score: DeviceScore) -> str:
    price = score.facts.price
    lines = [f"{score.name}: {score.label or 'no label'}"]
    if score.pcs is not None:
        lines.append(f"PCS {score.pcs}")
    if score.iecs is not None:
        lines.append(f"IECS {score.iecs:.3g} (our reading)")
    if price is not None:
        lines.append(format_money(price, score.facts.currency))
    return "\n".join(lines)
