"""Types of option values: shares, numbers, shapes, lists and plot files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from joulecast.cli.commands import OutputFileType as OutputFileType
from joulecast.cli.commands import PlotType as PlotType
from joulecast.errors import InputError
from joulecast.features.nets import Shape
from joulecast.units import parse_shape, parse_share

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    # Generic in newer versions of Click only.
    ParamType = click.ParamType


class ShareType(ParamType):
    """A probability or a share, as ``90%`` or ``0.9``.

    Args:
        least: The smallest value.
        is_open: Whether the smallest value and 1 themselves are refused.
    """

    name = "share"

    def __init__(self, least: float = 0.0, *, is_open: bool = True) -> None:
        self.least = least
        self.is_open = is_open

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the share as a float."""
        try:
            share = parse_share(str(value))
        except InputError:
            share = -1.0
        is_end = share in (0.0, 1.0)
        if not self.least <= share <= 1.0 or (self.is_open and is_end):
            message = f"{value!r} is not a share between {100 * self.least:g}% and 100%"
            self.fail(f"{message}: give one like 95% or 0.95", param, ctx)
        return share


class NumberType(click.FloatRange):
    """A number in a range; unlike ``click.FloatRange``, neither NaN nor infinite."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number that can be used: give one like 60", param, ctx)
        return number


class ShapeType(ParamType):
    """Sizes of one sample, as ``3x96x96``."""

    name = "shape"

    def convert(self, value: Any, param: Any, ctx: Any) -> Shape:
        """Return the sizes."""
        if isinstance(value, tuple):
            return value
        try:
            return parse_shape(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)


class ListType(ParamType):
    """Values separated by commas; settings files may also give a list.

    Args:
        choices: Allowed values; any where empty.
    """

    name = "list"

    def __init__(self, choices: Sequence[str] = ()) -> None:
        self.choices = choices

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Return the values, each once."""
        parts = value if isinstance(value, (list, tuple)) else str(value).split(",")
        words = tuple(dict.fromkeys(filter(None, (str(part).strip() for part in parts))))
        if not words:
            self.fail(f"{value!r} is empty: give at least one value, or leave it out", param, ctx)
        for word in words:
            if self.choices and word not in self.choices:
                self.fail(f"{word!r}: choose from {', '.join(self.choices)}", param, ctx)
        return words


class CountListType(ListType):
    """Whole numbers from 1, separated by commas: batch sizes, numbers of threads."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the numbers."""
        words = super().convert(value, param, ctx)
        if not all(word.isdigit() and int(word) > 0 for word in words):
            self.fail(f"{', '.join(words)}: give whole numbers from 1, like 8,16", param, ctx)
        return tuple(map(int, words))


class JoinedOption(click.Option):
    """An option whose repeated values are joined by commas, so that two devices are noticed."""

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **{**extra, "multiple": True})

    def type_cast_value(self, ctx: click.Context, value: Any) -> str:
        # Settings files give a string, the command line a list.
        return value if isinstance(value, str) else ",".join(super().type_cast_value(ctx, value))


class RepeatedOption(click.Option):
    """An option that can be given several times; a settings file may give one value alone."""

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **{**extra, "multiple": True})

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        return super().type_cast_value(ctx, [value] if isinstance(value, str) else value)


SHARE = ShareType()
