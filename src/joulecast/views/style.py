"""Colours and markers of plots: a palette that colour-blind readers can distinguish.

Most colours are Okabe and Ito's. An estimator has the same colour and marker in every plot; other
series take spare ones in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

TEXT = "#2B2B2B"
MUTED = "#6B6B6B"
GRID = "#E4E4E4"

BLUE = "#0072B2"
SKY = "#56B4E9"
RED = "#D55E00"
GREEN = "#009E73"
GREY = "#8A8A8A"

# Colour and marker of each estimator.
ESTIMATORS = {
    "additive": (BLUE, "o"),
    "additive-noprobe": (SKY, "D"),
    "subtractive": (RED, "s"),
    "subtractive-blocks": ("#882255", "D"),
    "neuralpower": (GREEN, "^"),
    "work-linear": ("#5B4EA3", "*"),
    "flops-linear": ("#E69F00", "D"),
    "flops": (GREY, "X"),
    "constant": ("#CC79A7", "o"),
}
SPARE_COLOURS = ("#44AA99", "#999933", "#117733", "#332288", "#AA4499", "#DDCC77")
SPARE_MARKERS = ("o", "D", "s", "^", "X", "*")


def choose_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each series: an estimator's fixed one, else a spare one."""
    return _choose(names, 0, SPARE_COLOURS)


def choose_markers(names: Iterable[str]) -> dict[str, str]:
    """Return a marker for each series, so that a greyscale print is readable."""
    return _choose(names, 1, SPARE_MARKERS)


def _choose(names: Iterable[str], place: int, spare: tuple[str, ...]) -> dict[str, str]:
    left = cycle(spare)
    return {
        name: ESTIMATORS[name][place] if name in ESTIMATORS else next(left)
        for name in dict.fromkeys(names)
    }
