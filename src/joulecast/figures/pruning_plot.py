"""Plot how pruned networks learn, and what their steps cost against the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecast.figures.marks import Line, Mark, Points
from joulecast.figures.plot import Axis, Caption, Panel, Plot, make_plot, require_data
from joulecast.views.style import MEASURED, MUTED, choose_colours, choose_markers

# Half of the width over which the seeds of a guide are spread.
_SPREAD = 0.28
_UNPRUNED = "unpruned"


@dataclass(frozen=True)
class LearningCurve:
    """Test loss and accuracy of a network over training steps."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]


def plot_pruned_networks(
    curves: Mapping[str, LearningCurve],
    shares: Mapping[str, Sequence[float]],
    budget_share: float,
    caption: Caption = Caption(),
) -> Plot:
    """Plot loss, accuracy and energy of pruned networks.

    Args:
        curves: How networks learn, by what guided their pruning; ``unpruned`` is one of them.
        shares: Energy of a step as a share of the unpruned network's, a value for each seed.
        budget_share: The budget.
        caption: What is written above.
    """
    require_data((share for found in shares.values() for share in found), "pruned network")
    names = [*curves, *shares]
    colours = {**choose_colours(names), _UNPRUNED: MEASURED}
    steps = Axis("Training steps", is_integer=True, low=0.0)
    panels = (
        Panel(steps, Axis("Test loss"), _make_lines(curves, colours, "losses"), "Test loss"),
        Panel(
            steps,
            Axis("Test accuracy", "%"),
            _make_lines(curves, colours, "accuracies"),
            "Test accuracy",
        ),
        _make_share_panel(shares, budget_share, colours),
    )
    return make_plot(panels, caption, "Pruned networks")


def _make_lines(
    curves: Mapping[str, LearningCurve], colours: Mapping[str, str], quantity: str
) -> tuple[Mark, ...]:
    factor = 100.0 if quantity == "accuracies" else 1.0
    return tuple(
        Line(
            name,
            tuple(map(float, curve.steps)),
            tuple(factor * value for value in getattr(curve, quantity)),
            colours[name],
        )
        for name, curve in curves.items()
    )


def _make_share_panel(
    shares: Mapping[str, Sequence[float]], budget_share: float, colours: Mapping[str, str]
) -> Panel:
    """Return a panel with a column for each guide and a point for each seed."""
    markers = choose_markers(shares)
    ends = (-0.5, len(shares) - 0.5)
    budget = 100.0 * budget_share
    marks: list[Mark] = [Line("budget", ends, (budget, budget), MUTED, is_dashed=True)]
    for place, (name, found) in enumerate(shares.items()):
        offsets = [
            _SPREAD * (2.0 * at / max(1, len(found) - 1) - 1.0) if len(found) > 1 else 0.0
            for at in range(len(found))
        ]
        marks.append(
            Points(
                name,
                tuple(place + offset for offset in offsets),
                tuple(100.0 * share for share in found),
                colours[name],
                marker=markers[name],
                hover_texts=tuple(f"{name}: {100.0 * share:.1f} %" for share in found),
            )
        )
    # In two lines, so that they stand side by side.
    x = Axis("Guide of pruning", categories=tuple(name.replace(", ", ",\n") for name in shares))
    y = Axis("Share of the unpruned network", "%", low=0.0)
    return Panel(x, y, tuple(marks), "Energy of a step, a point for each seed")
