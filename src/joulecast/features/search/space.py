"""Search spaces: widths and depths of a family, fields of the setup, and other hyper-parameters.

    SearchSpace ─┬─ dimensions   name → NumberRange(low, high, step) or Choice(values)
                 ├─ family       supplies widths and depths
                 └─ setup        batch, precision and optimizer, unless they are dimensions

    c1=8..64      c1=8..64/8      lr=1e-4..1e-1/log      batch=16,32,64      optimizer=sgd

A name that belongs neither to the family nor to the setup, such as ``lr``, is passed to the
training function and does not change the estimate. A name that resembles one of theirs (``C1``,
``batchsize``) is rejected, because it would silently have no effect.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Annotated, Any

from joulecast.families import FAMILIES, build_family, make_family
from joulecast.records import FLOAT_PRECISIONS, OPTIMIZERS, Network, Setup
from joulecast.records.codec import PositiveCount, Range, Record, add_codec, check_fields
from joulecast.system.errors import InputError, arg

Value = int | float | str
_Bound = Annotated[float, Range(-1e15, 1e15)]
_EXAMPLES = "c1=8..64, c1=8..64/8, batch=16,32,64 or lr=1e-4..1e-1/log"


@dataclass(frozen=True)
class NumberRange(Record):
    """Numbers from ``low`` to ``high``; only integers have a ``step``."""

    low: _Bound
    high: _Bound
    step: PositiveCount = 1
    log: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        is_bad_log = self.log and (self.low <= 0 or self.step != 1)
        if self.low > self.high or is_bad_log:
            raise InputError(
                f"{self.low}..{self.high} in steps of {self.step} is not a range: give the lower "
                "bound first; with /log, bounds above 0 and no step"
            )

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def bounds(self) -> tuple[int | float, int | float]:
        """The smallest and the largest value."""
        if not self.is_integer:
            return self.low, self.high
        return self.low, int(self.low + (self.high - self.low) // self.step * self.step)

    def draw(self, rng: random.Random) -> int | float:
        low, high = self.bounds
        if self.log:
            drawn = float(low * (high / low) ** rng.random())
            return round(drawn) if self.is_integer else drawn
        if self.is_integer:
            return int(low + self.step * rng.randint(0, int(high - low) // self.step))
        return rng.uniform(low, high)

    def shrink(self, value: float, share: float) -> int:
        """Return the integer at ``share`` of the distance from the lower bound to ``value``."""
        return int(self.low + self.step * round((value - self.low) * share / self.step))


@dataclass(frozen=True)
class Choice(Record):
    """One of several values."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        is_finite = (not isinstance(value, float) or math.isfinite(value) for value in self.values)
        if not self.values or not all(is_finite):
            shown = ", ".join(map(str, self.values)) or "empty"
            raise InputError(f"a choice is {shown}: give finite values, like {_EXAMPLES}")

    @property
    def bounds(self) -> tuple[Value, ...]:
        """All values."""
        return self.values

    def draw(self, rng: random.Random) -> Value:
        return rng.choice(self.values)


Dimension = NumberRange | Choice


def parse_dimension(text: str) -> tuple[str, Dimension]:
    """Return the name and dimension of a text like ``c1=8..64/8`` or ``precision=fp32,bf16``."""
    name, equals, values = (part.strip() for part in text.partition("="))
    if not (name and equals and values):
        raise InputError(f"{text!r} is not a dimension: give one like {_EXAMPLES}")
    if ".." not in values:
        return name, Choice(tuple(_parse_value(one) for one in values.split(",") if one.strip()))
    bounds, _, spacing = values.partition("/")
    low, high = (_parse_value(one) for one in bounds.partition("..")[::2])
    step = int(spacing) if spacing.isdecimal() else 1 if spacing in ("", "log") else None
    if isinstance(low, str) or isinstance(high, str) or step is None:
        raise InputError(f"{text!r} is not a range: give one like {_EXAMPLES}")
    return name, NumberRange(low, high, step, spacing == "log")


def _parse_value(text: str) -> Value:
    for parse in (int, float):
        try:
            return parse(text.strip())
        except ValueError:
            continue
    return text.strip()


add_codec(
    Dimension,
    lambda dimension: dimension.to_dict(),
    lambda data: (Choice if "values" in data else NumberRange).from_dict(data),
)

Shape = tuple[int, ...]
Params = Mapping[str, Value]

_CHOICES = {"precision": FLOAT_PRECISIONS, "optimizer": OPTIMIZERS}
SETUP_NAMES = ("batch", *_CHOICES)
"""Fields of a setup that a space may vary."""
_FIXED_NAMES = tuple(one.name for one in fields(Setup) if one.name not in SETUP_NAMES)


@dataclass(frozen=True)
class SearchSpace(Record):
    """Networks of a family, whose name may have the largest widths, and how they are trained."""

    family: str
    setup: Setup
    input_shape: Shape | None = None
    dimensions: Mapping[str, Dimension] = field(default_factory=dict)

    @property
    def original(self) -> tuple[Network, Setup]:
        """The family's largest network and its setup, which a budget's share refers to."""
        return make_family(self.family, self.input_shape), self.setup

    def build(self, params: Params) -> tuple[Network, Setup]:
        """Return the network and setup that these values describe."""
        family = self.family.partition(":")[0]
        widths = {name: int(params[name]) for name in FAMILIES[family].params}
        varied: dict[str, Any] = {name: params[name] for name in SETUP_NAMES if name in params}
        setup = replace(self.setup, **varied) if varied else self.setup
        return build_family(family, widths, self.input_shape), setup

    def draw(self, rng: random.Random) -> dict[str, Value]:
        return {name: dimension.draw(rng) for name, dimension in self.dimensions.items()}

    def list_smallest(self) -> list[dict[str, Value]]:
        """Return the smallest network with every choice of the setup."""
        found: list[dict[str, Value]] = [{}]
        for name, dimension in self.dimensions.items():
            # Both ends of a batch: a small one is cheap per step, a large one per sample.
            values: tuple[Value, ...] = dimension.bounds
            if name not in SETUP_NAMES:
                values = (min(values, key=lambda one: (isinstance(one, str), one)),)
            found = [{**one, name: value} for one in found for value in dict.fromkeys(values)]
        return found


def make_search_space(
    family: str,
    setup: Setup | None = None,
    vary: Mapping[str, Dimension | tuple[Value, ...]] | None = None,
    input_shape: Shape | None = None,
    trains: bool = True,
) -> SearchSpace:
    """Return the space of a family's parameters, as random members have them, and more.

    ``vary`` has other bounds of widths (``{"c1": NumberRange(8, 64, 8)}``), and more dimensions. A
    tuple is a choice, and a choice of one value fixes it. ``trains`` says whether a training
    function will receive names that are not ours.
    """
    name, _, widths = make_family(family, input_shape).name.partition(":")
    definition, dimensions = FAMILIES[name], dict[str, Dimension]()
    for param, original in zip(definition.params, map(int, widths.split(",")), strict=True):
        values = definition.list_values(param, original)
        ends = values[0], values[-1], values.step
        dimensions[param] = NumberRange(*ends) if len(values) > 1 else Choice((original,))
    for param, given in (vary or {}).items():
        dimension = Choice(given) if isinstance(given, tuple) else given
        _check_dimension(name, param, dimension, trains)
        dimensions[param] = dimension
    space = SearchSpace(family, setup or Setup(batch=definition.batch), input_shape, dimensions)
    # Building both ends reports an impossible width now instead of in some trial.
    for end in (0, -1):
        space.build({param: one.bounds[end] for param, one in dimensions.items()})
    return space


def _check_dimension(family: str, name: str, dimension: Dimension, trains: bool) -> None:
    """Raise InputError for impossible values, or a name that would have no effect."""
    widths, values = FAMILIES[family].params, dimension.bounds
    known, shown = (*widths, *SETUP_NAMES), ", ".join(map(str, values))
    if name in _CHOICES:
        if not set(values) <= set(_CHOICES[name]):
            raise InputError(f"{name} is {shown}: choose from {', '.join(_CHOICES[name])}")
    elif name in known:
        if not all(isinstance(value, int) and value > 0 for value in values):
            raise InputError(f"{name} is {shown}: give whole numbers above 0")
    elif name in _FIXED_NAMES:
        raise InputError(f"{name} cannot vary within a search: set it for the whole search")
    else:
        # What c1, C1 and c_5 have in common.
        letters = {one: "".join(filter(str.isalpha, one.lower())) for one in (*known, name)}
        similar = [one for one in known if letters[one] == letters[name]]
        similar += get_close_matches(name.lower(), known)
        if similar:
            raise InputError(
                f"{name!r} is not a parameter of {family}, did you mean {similar[0]}? For a "
                "parameter of your training function choose a less similar name"
            )
        if not trains:
            raise InputError(
                f"{name!r} is not a parameter of {family} and would have no effect: vary "
                f"{', '.join(known)}, or give {arg('train')} a function that uses it"
            )
