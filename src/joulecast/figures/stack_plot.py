"""Plot the energy of networks that differ only in how many equal layers they stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from joulecast.figures.marks import Floats, Line, Mark, Points
from joulecast.figures.plot import Axis, Caption, Panel, Plot, make_plot, require_data
from joulecast.units import format_energy
from joulecast.views.style import BLUE, MEASURED, choose_colours, choose_markers


@dataclass(frozen=True)
class LayerStack:
    """Energies of a step over the number of equal layers.

    Attributes:
        title: What was stacked and how it was trained.
        counts: Numbers of equal layers.
        energies_j: Measured energy at each number.
        lows_j: Smallest measurement at each number; empty if each was measured once.
        highs_j: Largest measurement at each number.
        line_j: Ends of the fitted straight line, at the first and the last number.
        estimates_j: Estimates by method, at each number.
    """

    title: str
    counts: Floats
    energies_j: Floats
    lows_j: Floats
    highs_j: Floats
    line_j: tuple[float, float]
    estimates_j: Mapping[str, Floats] = field(default_factory=dict)


def plot_layer_stacks(stacks: Sequence[LayerStack], caption: Caption = Caption()) -> Plot:
    """Plot measured energies with their straight line, and estimates, one panel per stack."""
    require_data((count for stack in stacks for count in stack.counts), "stack of layers")
    names = tuple(dict.fromkeys(name for stack in stacks for name in stack.estimates_j))
    colours, markers = choose_colours(names), choose_markers(names)
    panels = [_make_panel(stack, colours, markers) for stack in stacks]
    return make_plot(panels, caption, "Energy of stacked layers")


def _make_panel(stack: LayerStack, colours: Mapping[str, str], markers: Mapping[str, str]) -> Panel:
    ends = (stack.counts[0], stack.counts[-1])
    marks: list[Mark] = [Line("straight line", ends, stack.line_j, BLUE)]
    for name, energies_j in stack.estimates_j.items():
        marks.append(Line(name, stack.counts, energies_j, colours[name], is_dashed=True))
        marks.append(
            Points(
                name,
                stack.counts,
                energies_j,
                colours[name],
                hover_texts=_describe(name, stack.counts, energies_j),
                marker=markers[name],
            )
        )
    marks.append(
        Points(
            "whole network",
            stack.counts,
            stack.energies_j,
            MEASURED,
            low=stack.lows_j,
            high=stack.highs_j,
            hover_texts=_describe("whole network", stack.counts, stack.energies_j),
        )
    )
    x = Axis("Equal hidden layers", is_integer=True)
    return Panel(x, Axis("Energy per step", "J", True, low=0.0), tuple(marks), stack.title)


def _describe(name: str, counts: Floats, energies_j: Floats) -> tuple[str, ...]:
    pairs = zip(counts, energies_j, strict=True)
    return tuple(f"{name}, {count:g} layers: {format_energy(energy)}" for count, energy in pairs)
