"""Choices of the subtractive estimator: what it does by default, and what the AMPERE paper says.

Every field of ``SubtractiveOptions`` is one deviation from the paper. Its default is what
``subtractive`` does, its value in ``PAPER`` what the paper says (sections 3.2 to 3.4). ``ampere``
is the estimator with all of them as in the paper. A name like ``subtractive:stop:ends`` changes
single ones: those of ``subtractive`` become the paper's, those of ``ampere`` ours.
``benchmarks/faithful`` has the effect of each.

Where the paper leaves something open, the most literal reading was taken:

- "the variance is smaller than 5 % of the profiled data": the largest variance over a curve, in J²,
  is compared as a number with 5 % of the mean of its data, in J, both of 500 batches, which is what
  the paper plots. Units do not match. ``variance share`` compares it with the variance of the data
  instead.
- "the number of profiled points exceeds the limits": the number is not given; 20 points of a curve
  are ours.
- "the upper and lower bounds as the starting points": two points, all widths smallest and all
  largest.
- Equation 3 has a length scale, but neither a signal variance nor noise. Values are standardised,
  so that the signal variance is 1; length scale and one noise variance have the largest likelihood.
  The length scale is between a tenth and ten times the range of channels.
- Equation 2 subtracts the input and the output layer of the network. A hidden layer at another
  height and width gets an input layer on a smaller image, which is then another kind with its own
  curve. Where they do not fit (an image before a linear layer), variants keep our stem and head.
- Repeated blocks are layers ("repeating layers or blocks of layers"); a block has one width.

500 batches per measurement are not a choice of an estimator: measure with ``--runs 500 --rounds 1``
(``PAPER_BATCHES``). Not in the paper at all, and part of both: estimates of layers without a curve,
intervals of a network's total, and what to do when a device refuses a trial.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from joulecast.gp.regression import ProcessOptions
from joulecast.system.errors import InputError
from joulecast.variants.curves import Partition

PAPER_BATCHES = 500
"""Steps that one measurement of the paper spans."""

STOP_RULES = ("sd", "variance", "variance share")
"""What is compared with 5 %: the largest standard deviation of a curve over the mean of its values;
its variance over that mean, as plain numbers; or its variance over the variance of the values."""


@dataclass(frozen=True)
class SubtractiveOptions(ProcessOptions):
    """How curves are fitted (``ProcessOptions``), chosen and added up.

    Attributes:
        carried: The variance of what is subtracted is added to the point's own.
        stop: One of STOP_RULES.
        limit: Points after which a curve is done; None if only the campaign has a limit.
        order: The least certain curve of all is measured next, weighted by its use; else one curve
            after the other, outputs first.
        corners: Bounds include mixed corners, one width smallest and the other largest.
        grid: Candidates are a coarse grid of widths; else every channel count, up to 128 values of
            each of two widths.
        stems: Variants have small stems and heads of ours; else the network's own input and output
            layers where they fit.
        gradient: The output layer alone computes the gradient of its input.
        blend: Where a curve is mostly noise, rates per FLOP, byte and launch are averaged in, and
            no layer costs less than nothing; else the mean of the curve counts, whatever it is.
        extrapolation: Beyond the profiled widths costs grow with the work; else the process itself
            is evaluated there.
        updates: Weights that are used several times are updated once; else every call costs the
            same.
        layers: Layers of a repeated block have their own curves; else a block is one layer.
        repair: Campaigns measure doubtful trials again.
    """

    carried: bool = True
    stop: str = "sd"
    limit: int | None = None
    order: bool = True
    corners: bool = True
    grid: bool = True
    stems: bool = True
    gradient: bool = True
    blend: bool = True
    extrapolation: bool = True
    updates: bool = True
    layers: bool = True
    repair: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop not in STOP_RULES:
            raise InputError(f"unknown rule {self.stop!r}: choose one of {', '.join(STOP_RULES)}")

    @property
    def partition(self) -> Partition:
        """How networks are split and variants made."""
        return Partition(not self.layers, not self.stems, self.gradient)


OURS = SubtractiveOptions()
"""What ``subtractive`` does."""

DEVIATIONS = tuple(one.name for one in fields(SubtractiveOptions) if one.name != "kernel")
"""Names of all deviations, which are those of the options."""

_WITHOUT: dict[str, Any] = dict.fromkeys(DEVIATIONS, False)
PAPER = SubtractiveOptions(**{**_WITHOUT, "stop": "variance", "limit": 20})
"""What the paper says."""

METHODS = {"subtractive": OURS, "subtractive-blocks": replace(OURS, layers=False), "ampere": PAPER}
"""Estimators by name. ``subtractive-blocks`` has every repeated block as one layer, as the paper
splits ResNets; it equals ``subtractive`` on networks that repeat no block."""


def read_options(name: str) -> SubtractiveOptions:
    """Return the options of an estimator, such as ``subtractive`` or ``ampere:stop:order``."""
    method, *changes = name.split(":")
    return change_options(METHODS[method], tuple(changes))


def change_options(options: SubtractiveOptions, names: tuple[str, ...]) -> SubtractiveOptions:
    """Return options with some deviations as in the paper, or as ours if they are the paper's."""
    for name in names:
        if name not in DEVIATIONS:
            raise InputError(
                f"there is no deviation {name!r} from the paper: give one of "
                f"{', '.join(DEVIATIONS)}"
            )
        ours, paper = getattr(OURS, name), getattr(PAPER, name)
        options = replace(options, **{name: paper if getattr(options, name) == ours else ours})
    return options
