"""Do layers add up? A net's layers on top of each other, beside the whole net that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecast.figures.marks import Bars
from joulecast.figures.picture import Axis, Panel, Picture, need_some, spans_decades
from joulecast.figures.style import BLUE, COLOURS, MEASURED, make_tints
from joulecast.units import format_energy

# A stack of more layers than this cannot be read: the smallest are joined.
MOST_LAYERS = 8


@dataclass(frozen=True)
class Whole:
    """A net that was measured as a whole, and what each of its layers is said to cost.

    Attributes:
        layers: Joules by the layer's name, in order.
        neuralpower_j: What profiling forward, backward and update apart says, where known.
        measured_sd_j: How far repeated measurements of the whole spread.
    """

    net: str
    measured_j: float
    layers: Mapping[str, float]
    neuralpower_j: float | None = None
    measured_sd_j: float = 0.0


def draw_additivity(
    wholes: Sequence[Whole],
    *,
    title: str = "Layers added up, and the whole net",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """For each net its layers on top of each other, beside the whole, beside NeuralPower's sum.

    Nets of very different size are drawn as shares of what each took.
    """
    need_some(wholes, "the nets measured as a whole")
    share = spans_decades(whole.measured_j for whole in wholes)
    scales = [100.0 / whole.measured_j if share else 1.0 for whole in wholes]
    theirs = any(whole.neuralpower_j is not None for whole in wholes)
    width = 0.8 / (3 if theirs else 2)
    marks = (*_stack_layers(wholes, scales, width), _draw_measured(wholes, scales, width))
    if theirs:
        marks = (*marks, _draw_theirs(wholes, scales, width))
    x = Axis("", labels=tuple(whole.net for whole in wholes))
    y = Axis("energy of a step", "J", True, low=0.0)
    if share:
        y = Axis("share of the measured whole", "%", low=0.0)
    return Picture(title, (Panel(x, y, marks),), about, provenance)


def _draw_measured(wholes: Sequence[Whole], scales: Sequence[float], width: float) -> Bars:
    taken = [
        ((w.measured_j - w.measured_sd_j) * scale, (w.measured_j + w.measured_sd_j) * scale)
        for w, scale in zip(wholes, scales, strict=True)
    ]
    return Bars(
        "measured whole",
        tuple(at - 0.4 + 1.5 * width for at in range(len(wholes))),
        tuple(w.measured_j * scale for w, scale in zip(wholes, scales, strict=True)),
        MEASURED,
        0.94 * width,
        low=tuple(low for low, _ in taken),
        high=tuple(high for _, high in taken),
        notes=tuple(f"{w.net} took {format_energy(w.measured_j)}" for w in wholes),
    )


def _draw_theirs(wholes: Sequence[Whole], scales: Sequence[float], width: float) -> Bars:
    theirs = {at: w.neuralpower_j for at, w in enumerate(wholes) if w.neuralpower_j is not None}
    return Bars(
        "neuralpower",
        tuple(at - 0.4 + 2.5 * width for at in theirs),
        tuple(value * scales[at] for at, value in theirs.items()),
        COLOURS["neuralpower"],
        0.94 * width,
        notes=tuple(
            f"{wholes[at].net}\nneuralpower: {format_energy(value)}, "
            f"{100 * (value / wholes[at].measured_j - 1):+.1f} %"
            for at, value in theirs.items()
        ),
    )


def _stack_layers(
    wholes: Sequence[Whole], scales: Sequence[float], width: float
) -> tuple[Bars, ...]:
    names = _name_layers(wholes)
    shown = sorted(dict.fromkeys(names.values()), key=lambda name: name not in names)
    tints = dict(zip(shown, make_tints(BLUE, len(shown)), strict=True))
    tops = [0.0] * len(wholes)
    bars = []
    for name in shown:
        values, bases, notes = [], [], []
        for at, whole in enumerate(wholes):
            own = {layer: j for layer, j in whole.layers.items() if names[layer] == name}
            bases.append(tops[at])
            values.append(sum(own.values()) * scales[at])
            tops[at] += values[-1]
            notes.append(
                "\n".join([whole.net, *(f"{n}: {format_energy(j)}" for n, j in own.items())])
            )
        middles = tuple(at - 0.4 + 0.5 * width for at in range(len(wholes)))
        bars.append(
            Bars(
                name,
                middles,
                tuple(values),
                tints[name],
                0.94 * width,
                tuple(bases),
                notes=tuple(notes),
            )
        )
    return tuple(bars)


def _name_layers(wholes: Sequence[Whole]) -> dict[str, str]:
    """What each layer is called in the picture: its name, or one for all the small ones."""
    totals: dict[str, float] = {}
    for whole in wholes:
        for layer, energy_j in whole.layers.items():
            totals[layer] = totals.get(layer, 0.0) + energy_j / whole.measured_j
    large = sorted(totals, key=lambda layer: -totals[layer])[: MOST_LAYERS - 1]
    if len(totals) <= MOST_LAYERS:
        large = list(totals)
    other = f"{len(totals) - len(large)} smaller layers"
    return {layer: layer if layer in large else other for layer in totals}
