"""Colours and markers for all backends: a palette that colour-blind readers can distinguish.

Most colours are Okabe and Ito's. An estimator has the same colour and marker in every plot; other
series take spare ones in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
TEXT = "#2B2B2B"
MUTED = "#6B6B6B"
GRID = "#E4E4E4"
MEASURED = "#3C3C3C"

BLUE = "#0072B2"
SKY = "#56B4E9"
RED = "#D55E00"
GREEN = "#009E73"
GREY = "#8A8A8A"
# For signed values: blue is negative, red positive.
DIVERGING = (BLUE, "#F4F4F4", RED)

COLOURS = {
    "additive": BLUE,
    "additive-noprobe": SKY,
    "subtractive": RED,
    "subtractive-blocks": "#882255",
    "neuralpower": GREEN,
    "work-linear": "#5B4EA3",
    "flops-linear": "#E69F00",
    "flops": GREY,
    "constant": "#CC79A7",
}
MARKERS = {
    "additive": "circle",
    "additive-noprobe": "diamond",
    "subtractive": "square",
    "subtractive-blocks": "diamond",
    "neuralpower": "triangle",
    "work-linear": "star",
    "flops-linear": "diamond",
    "flops": "cross",
    "constant": "circle",
}
SPARE_COLOURS = ("#44AA99", "#999933", "#117733", "#332288", "#AA4499", "#DDCC77")
SPARE_MARKERS = ("circle", "diamond", "square", "triangle", "cross", "star")


def choose_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each series: an estimator's fixed one, else a spare one."""
    return _choose(names, COLOURS, SPARE_COLOURS)


def choose_markers(names: Iterable[str]) -> dict[str, str]:
    """Return a marker for each series, so that a greyscale print is readable."""
    return _choose(names, MARKERS, SPARE_MARKERS)


def make_tints(colour: str, count: int) -> tuple[str, ...]:
    """Return tints of a colour from itself towards white, for the parts of a stack."""
    shares = [0.75 * index / max(1, count - 1) for index in range(count)]
    return tuple(mix_colours(colour, "#FFFFFF", share) for share in shares)


def mix_colours(start: str, end: str, share: float) -> str:
    """Return the colour at a share of the way from one colour to another."""
    pairs = ((int(start[i : i + 2], 16), int(end[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in pairs)


def _choose(names: Iterable[str], fixed: dict[str, str], spare: tuple[str, ...]) -> dict[str, str]:
    left = cycle(spare)
    return {name: fixed.get(name) or next(left) for name in dict.fromkeys(names)}
