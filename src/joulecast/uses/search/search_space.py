"""What may vary: a family's widths and depths, how it is trained, and hyper-parameters of yours.

    Space ─┬─ dimensions   name → NumberRange(low, high, step) or Choice(values)
           ├─ family       widths and depths that are no dimension keep the family's own
           └─ setup        batch, precision and optimizer that are no dimension stay as they are

A name that is neither the family's nor the setup's (``lr``) is handed to the training function and
changes no estimate. One that only looks like theirs (``C1``, ``batchsize``) is refused: it would
change nothing without a word.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

from joulecast.errors import InputError
from joulecast.families import FAMILIES, build_family, make_family
from joulecast.records import OPTIMIZERS, PRECISIONS, Network, Setup
from joulecast.uses.search.dimensions import Choice, Dimension, NumberRange, Value, list_ends

Json = dict[str, Any]
Shape = tuple[int, ...]
Params = Mapping[str, Value]

_WORDS = {"precision": PRECISIONS, "optimizer": OPTIMIZERS}
SETUP_NAMES = ("batch", *_WORDS)
"""Fields of a setup that a space may vary."""
_FIXED_NAMES = tuple(one.name for one in fields(Setup) if one.name not in SETUP_NAMES)


@dataclass(frozen=True)
class SearchSpace:
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
            if isinstance(dimension, NumberRange):
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


def make_search_space(
    family: str,
    setup: Setup | None = None,
    vary: Mapping[str, Dimension | tuple[Value, ...]] | None = None,
    input_shape: Shape | None = None,
    trains: bool = True,
) -> SearchSpace:
    """A family's widths and depths, each 1 to its original, and whatever else shall vary.

    Args:
        family: Its name, like ``cnn5`` or ``cnn5:16,32,64,128``.
        setup: How its nets are trained; the family's own batch by default.
        vary: Other bounds of widths (``{"c1": NumberRange(8, 64, 8)}``), and more dimensions; a tuple
            is a choice, and a choice of one value fixes it.
        input_shape: Shape of one sample, where it is not the family's own.
        trains: Whether there is a training function, which other names are for.

    Raises:
        InputError: There is no such family, a dimension cannot be what it says, or its name is
            nobody's.
    """
    bare, largest = _read_family(family, input_shape)
    kind, dimensions = FAMILIES[bare], dict[str, Dimension]()
    for name, most in largest.items():
        step = kind.steps.get(name, 1)
        fixed = name in kind.fixed
        dimensions[name] = Choice((most,)) if fixed else NumberRange(step, most, step)
    for name, said in (vary or {}).items():
        dimension = Choice(said) if isinstance(said, tuple) else said
        _check_name(bare, name, trains)
        _check_dimension(bare, name, dimension)
        dimensions[name] = dimension
    space = SearchSpace(family, setup or Setup(batch=kind.batch), input_shape, dimensions)
    # Both ends are built once, so that a wrong width is said now and not in some trial.
    for end in (0, -1):
        space.build({name: list_ends(one)[end] for name, one in dimensions.items()})
    return space


def _read_family(family: str, input_shape: Shape | None) -> tuple[str, dict[str, int]]:
    """The bare name, and the largest width or depth of each name."""
    network = make_family(family, input_shape)
    bare, _, widths = network.name.partition(":")
    return bare, dict(zip(FAMILIES[bare].params, map(int, widths.split(",")), strict=True))


def _check_name(family: str, name: str, trains: bool) -> None:
    """Complain of a name that would change nothing, though somebody means it to."""
    known = (*FAMILIES[family].params, *SETUP_NAMES)
    if name in known:
        return
    if name in _FIXED_NAMES:
        raise InputError(f"{name} cannot vary within a search: it is part of the setup")
    near = [one for one in known if _reduce(one) == _reduce(name)]
    near += get_close_matches(name.lower(), known)
    if near:
        raise InputError(
            f"{name!r} is nothing of {family}, did you mean {near[0]}? Where it is your own, give "
            "it a name that is less alike"
        )
    if not trains:
        raise InputError(
            f"{name!r} is nothing of {family} and would change nothing: give {', '.join(known)}, "
            "or --train a function that uses it"
        )


def _reduce(name: str) -> str:
    """What is alike in ``c1``, ``C1`` and ``c_5``."""
    return "".join(letter for letter in name.lower() if letter.isalpha())


def _check_dimension(family: str, name: str, dimension: Dimension) -> None:
    whole = name == "batch" or name in FAMILIES[family].params
    values = list_ends(dimension)
    if whole and not all(isinstance(value, int) and value > 0 for value in values):
        raise InputError(f"{name} is {', '.join(map(str, values))}: give whole numbers above 0")
    if name in _WORDS and not set(values) <= set(_WORDS[name]):
        known = ", ".join(_WORDS[name])
        raise InputError(f"{name} is {', '.join(map(str, values))}: choose of {known}")


def _rank(value: Value) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")
