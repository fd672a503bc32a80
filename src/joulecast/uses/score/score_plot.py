"""Plot the scores of devices against their price and their performance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from joulecast.errors import InputError
from joulecast.records import weakest_provenance
from joulecast.uses.score.device_score import DeviceScore
from joulecast.uses.score.label_picture import LETTER_COLOURS
from joulecast.uses.score.score_labels import LETTERS
from joulecast.views.plot_kinds import label_axis
from joulecast.views.report import Plot, make_table
from joulecast.views.style import GREY
from joulecast.views.words import label_provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = Callable[[DeviceScore], float | None]
_BEST_PCS = 100.0
_SCORES: tuple[tuple[str, Value], ...] = (
    ("PCS", lambda score: score.pcs),
    ("IECS (our reading)", lambda score: score.iecs),
)


def plot_scores(scores: Sequence[DeviceScore]) -> list[Plot]:
    """Return the plots of both scores, against price and against performance.

    Raises:
        InputError: Prices have several currencies, or there is nothing to plot.
    """
    currencies = {one.facts.currency for one in scores if one.facts.price is not None}
    if len(currencies) > 1:
        named = ", ".join(sorted(one or "none" for one in currencies))
        raise InputError(f"prices are in {named}: give all of them in one currency")
    currency = f" ({next(iter(currencies))})" if any(currencies) else ""
    quantities: dict[str, tuple[str, Value]] = {
        "price": (f"Price{currency}", lambda score: score.facts.price),
        "performance": ("Performance (inferences/s)", lambda score: score.inferences_per_s),
    }
    found = [_plot(scores, name, *quantity) for name, quantity in quantities.items()]
    plots = [plot for plot in found if plot is not None]
    if not plots:
        raise InputError(
            "there is nothing to plot: give a TDP for PCS, or devices with measured energies"
        )
    return plots


def _plot(scores: Sequence[DeviceScore], name: str, quantity: str, value: Value) -> Plot | None:
    panels = {}
    for title, read_score in _SCORES:
        points = [
            (one, x, y)
            for one in scores
            if (x := value(one)) is not None and (y := read_score(one)) is not None
        ]
        if points:
            panels[title] = points
    if not panels:
        return None

    def draw(figure: Figure) -> None:
        for axes, (title, points) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            for score, x, y in points:
                colour = LETTER_COLOURS[LETTERS.index(score.label)] if score.label else GREY
                axes.plot([x], [y], "o", color=colour, ms=8)
                text = f"{score.name} ({score.label or 'no label'})"
                axes.annotate(text, (x, y), (6, 5), textcoords="offset points", fontsize=8)
            # Names stand on the right of their points.
            axes.set_xlim(0.0, 1.35 * max(x for _, x, _ in points) or 1.0)
            lowest, highest = min(y for *_, y in points), max(y for *_, y in points)
            axes.set_ylim(min(0.0, lowest), _BEST_PCS if title == "PCS" else 1.1 * highest)
            label_axis(axes.xaxis, quantity)
            label_axis(axes.yaxis, title)

    rows = [
        (score.name, score.label or "–", title, f"{x:.4g}", f"{y:.4g}")
        for title, points in panels.items()
        for score, x, y in points
    ]
    data = make_table(("device", "label", "score", f">{quantity}", ">value"), rows)
    provenance = label_provenance(weakest_provenance(one.provenance for one in scores))
    title = f"Scores against {name}{provenance}"
    return Plot(name, title, draw, "", data, (5.0 * len(panels), 4.0))
