"""What may vary: a family's widths and depths, how it is trained, and hyper-parameters of yours.

    Space ─┬─ dimensions   name → Range(low, high, step) or Choice(values)
           ├─ family       widths and depths that are no dimension keep the family's own
           └─ setup        batch, precision and optimizer that are no dimension stay as they are

A name that is neither the family's nor the setup's (``lr``) is handed to the training function and
changes no estimate.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joulecast.errors import InputError
from joulecast.families import FAMILIES, build_family, make_family
from joulecast.records import OPTIMIZERS, PRECISIONS, Network, Setup

Json = dict[str, Any]
Shape = tuple[int, ...]
Value = int | float | str
Params = Mapping[str, Value]

_WORDS = {"precision": PRECISIONS, "optimizer": OPTIMIZERS}
SETUP_NAMES = ("batch", *_WORDS)
"""Fields of a setup that a space may vary."""
_EXAMPLES = "c1=8..64, c1=8..64/8, batch=16,32,64 or lr=1e-4..1e-1/log"


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``: whole ones by ``step``, else any, evenly or by decades."""

    low: int | float
    high: int | float
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        bad_log = self.log and (self.low <= 0 or self.step != 1)
        if self.low > self.high or self.step < 1 or bad_log:
            raise InputError(
                f"{self.low}..{self.high} in steps of {self.step} is no range: give a low end, a "
                "high end that is not below it and a step of at least 1; above 0 for /log"
            )

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[int | float, int | float]:
        """The smallest and the largest value."""
        if not self.whole:
            return self.low, self.high
        return self.low, int(self.low + (self.high - self.low) // self.step * self.step)

    def draw(self, rng: random.Random) -> int | float:
        """A value, each as probable as the others."""
        low, high = self.ends
        if self.log:
            drawn = float(low * (high / low) ** rng.random())
            return round(drawn) if self.whole else drawn
        if self.whole:
            return int(low + self.step * rng.randint(0, int(high - low) // self.step))
        return rng.uniform(low, high)

    def shrink(self, value: float, share: float) -> int:
        """A whole value so far from the low end as a share says."""
        return int(self.low + self.step * round((value - self.low) * share / self.step))

    def to_dict(self) -> Json:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError(f"a choice of nothing: give values, like {_EXAMPLES}")

    def draw(self, rng: random.Random) -> Value:
        """A value, each as probable as the others."""
        return rng.choice(self.values)

    def to_dict(self) -> Json:
        return {"values": list(self.values)}


Dimension = Range | Choice


@dataclass(frozen=True)
class Space:
    """Nets of a family and how they are trained.

    Attributes:
        family: Its name; with widths, they are the largest ones and the original.
        setup: What holds where no dimension says otherwise.
        input_shape: Shape of one sample, where it is not the family's own.
        dimensions: What varies.
    """

    family: str
    setup: Setup
    input_shape: Shape | None = None
    dimensions: Mapping[str, Dimension] = field(default_factory=dict)

    @property
    def original(self) -> tuple[Network, Setup]:
        """The family's largest net as the setup says: what shares of a budget refer to."""
        return make_family(self.family, self.input_shape), self.setup

    def build(self, params: Params) -> tuple[Network, Setup]:
        """The net that some values mean, and how it is trained."""
        bare = self.family.partition(":")[0]
        widths = {name: int(params[name]) for name in FAMILIES[bare].params}
        words: Json = {name: params[name] for name in SETUP_NAMES if name in params}
        return build_family(bare, widths, self.input_shape), replace(self.setup, **words)

    def draw(self, rng: random.Random) -> dict[str, Value]:
        """Random values, each dimension evenly."""
        return {name: dimension.draw(rng) for name, dimension in self.dimensions.items()}

    def list_smallest(self) -> list[dict[str, Value]]:
        """The smallest net at every choice of how it is trained."""
        found: list[dict[str, Value]] = [{}]
        for name, dimension in self.dimensions.items():
            values: tuple[Value, ...] = dimension.values if isinstance(dimension, Choice) else ()
            if isinstance(dimension, Range):
                # Of a batch both ends: a small one is cheap a step, a large one a sample.
                values = dimension.ends if name == "batch" else dimension.ends[:1]
            elif name not in SETUP_NAMES:
                values = (min(values, key=_rank),)
            found = [{**one, name: value} for one in found for value in dict.fromkeys(values)]
        return found

    def to_dict(self) -> Json:
        return {
            "family": self.family,
            "setup": self.setup.to_dict(),
            "input_shape": None if self.input_shape is None else list(self.input_shape),
            "dimensions": {name: one.to_dict() for name, one in self.dimensions.items()},
        }


def make_space(
    family: str,
    setup: Setup | None = None,
    vary: Mapping[str, Dimension | tuple[Value, ...]] | None = None,
    input_shape: Shape | None = None,
) -> Space:
    """A family's widths and depths, each 1 to its original, and whatever else shall vary.

    Args:
        family: Its name, like ``cnn5`` or ``cnn5:16,32,64,128``.
        setup: How its nets are trained; the family's own batch by default.
        vary: Other bounds of widths (``{"c1": Range(8, 64, 8)}``), and more dimensions; a tuple
            is a choice, and a choice of one value fixes it.
        input_shape: Shape of one sample, where it is not the family's own.

    Raises:
        InputError: There is no such family, or a dimension cannot be what it says.
    """
    bare, largest = _read_family(family, input_shape)
    kind, dimensions = FAMILIES[bare], dict[str, Dimension]()
    for name, most in largest.items():
        step = kind.steps.get(name, 1)
        fixed = name in kind.fixed
        dimensions[name] = Choice((most,)) if fixed else Range(step, most, step)
    for name, said in (vary or {}).items():
        dimension = Choice(said) if isinstance(said, tuple) else said
        _check_dimension(bare, name, dimension)
        dimensions[name] = dimension
    space = Space(family, setup or Setup(batch=kind.batch), input_shape, dimensions)
    # Both ends are built once, so that a wrong width is said now and not in some trial.
    for end in (0, -1):
        space.build({name: _list_ends(one)[end] for name, one in dimensions.items()})
    return space


def parse_dimension(text: str) -> tuple[str, Dimension]:
    """``c1=8..64/8`` or ``precision=fp32,bf16`` → a name and what it may be."""
    name, equals, words = (word.strip() for word in text.partition("="))
    if not (name and equals and words):
        raise InputError(f"{text!r} says not what may vary: give one like {_EXAMPLES}")
    if ".." not in words:
        values = tuple(_read_value(word) for word in words.split(",") if word.strip())
        return name, Choice(values)
    ends, _, by = words.partition("/")
    low, high = (_read_value(word) for word in ends.split("..", 1))
    if isinstance(low, str) or isinstance(high, str) or not (by in ("", "log") or by.isdigit()):
        raise InputError(f"{text!r} is no range: give one like {_EXAMPLES}")
    return name, Range(low, high, int(by) if by.isdigit() else 1, by == "log")


def _read_value(word: str) -> Value:
    for kind in (int, float):
        try:
            return kind(word.strip())
        except ValueError:
            continue
    return word.strip()


def _read_family(family: str, input_shape: Shape | None) -> tuple[str, dict[str, int]]:
    """The bare name, and the largest width or depth of each name."""
    network = make_family(family, input_shape)
    bare, _, widths = network.name.partition(":")
    return bare, dict(zip(FAMILIES[bare].params, map(int, widths.split(",")), strict=True))


def _check_dimension(family: str, name: str, dimension: Dimension) -> None:
    whole = name == "batch" or name in FAMILIES[family].params
    values = _list_ends(dimension) if isinstance(dimension, Range) else dimension.values
    if whole and not all(isinstance(value, int) and value > 0 for value in values):
        raise InputError(f"{name} is {', '.join(map(str, values))}: give whole numbers above 0")
    if name in _WORDS and not set(values) <= set(_WORDS[name]):
        known = ", ".join(_WORDS[name])
        raise InputError(f"{name} is {', '.join(map(str, values))}: choose of {known}")


def _list_ends(dimension: Dimension) -> tuple[Value, ...]:
    return dimension.ends if isinstance(dimension, Range) else dimension.values


def _rank(value: Value) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")
