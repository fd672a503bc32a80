"""How pictures look, for every backend: one calm palette that colour-blind eyes can tell apart.

Mostly Okabe and Ito's colours. An estimator has its colour and its shape in every picture; whoever
is not named here takes a spare one, in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
INK = "#2B2B2B"
FAINT = "#6B6B6B"
GRID = "#E4E4E4"
MEASURED = "#3C3C3C"

BLUE = "#0072B2"
SKY = "#56B4E9"
RED = "#D55E00"
GREEN = "#009E73"
GREY = "#8A8A8A"
# For shades: blue is too little, red is too much.
DIVERGING = (BLUE, "#F4F4F4", RED)

COLOURS = {
    "additive": BLUE,
    "additive-noprobe": SKY,
    "subtractive": RED,
    "neuralpower": GREEN,
    "flops": GREY,
}
SHAPES = {
    "additive": "circle",
    "additive-noprobe": "diamond",
    "subtractive": "square",
    "neuralpower": "triangle",
    "flops": "cross",
}
SPARE_COLOURS = ("#5B4EA3", "#E69F00", "#CC79A7", "#44AA99", "#882255", "#999933", "#117733")
SPARE_SHAPES = ("circle", "diamond", "square", "triangle", "cross", "star")


def choose_colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name: its own, or a spare one."""
    return _choose(names, COLOURS, SPARE_COLOURS)


def choose_shapes(names: Iterable[str]) -> dict[str, str]:
    """A shape for each name, so that a grey print can be read."""
    return _choose(names, SHAPES, SPARE_SHAPES)


def make_tints(colour: str, count: int) -> tuple[str, ...]:
    """Tints of a colour from itself towards white, for parts of one whole."""
    steps = [0.75 * place / max(1, count - 1) for place in range(count)]
    return tuple(mix(colour, "#FFFFFF", step) for step in steps)


def mix(one: str, two: str, share: float) -> str:
    """A colour on the way from one to another."""
    pairs = ((int(one[i : i + 2], 16), int(two[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in pairs)


def _choose(names: Iterable[str], own: dict[str, str], spare: tuple[str, ...]) -> dict[str, str]:
    left = cycle(spare)
    return {name: own.get(name) or next(left) for name in dict.fromkeys(names)}
