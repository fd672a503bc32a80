"""Make members of families: from a name, from parameters, or at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from joulecast.errors import NetError
from joulecast.families.draft import NetworkDraft
from joulecast.families.family_table import FAMILIES, Family
from joulecast.kinds import Shape
from joulecast.records import Input, Network

WIDEST = 65_536
DEEPEST = 1_000
LARGEST_KERNEL = 63
_MOST_KEPT, _MOST_KEPT_LAYERS = 2048, 300
_KEPT: dict[tuple[str, tuple[tuple[str, int], ...], Shape | None], Network] = {}


def is_family(name: str) -> bool:
    """Return whether the name of a network begins with the name of a family."""
    return name.split(":", 1)[0] in FAMILIES


def make_family(name: str, input_shape: Shape | None = None) -> Network:
    """Return the network with a name such as ``cnn5:16,32`` or ``transformer:width=64,depth=2``.

    Raises:
        NetError: The family, a parameter, its value or the input shape is invalid.
    """
    return build_family(name.partition(":")[0], parse_params(name), input_shape)


def parse_params(name: str) -> dict[str, int]:
    """Return all parameters of the network with a name; those left out are the original's.

    Raises:
        NetError: There is no such family or parameter, or a value is not an integer.
    """
    family_name, _, text = name.partition(":")
    if family_name not in FAMILIES:
        raise NetError(f"unknown family {family_name!r}; known families: {', '.join(FAMILIES)}")
    return _parse_params(name, FAMILIES[family_name], text)


def build_family(
    family_name: str, params: Mapping[str, int], input_shape: Shape | None = None
) -> Network:
    """Return the member of a family with the given parameters.

    Raises:
        NetError: A parameter or the input shape is invalid.
    """
    key = (family_name, tuple(params.items()), input_shape)
    found = _KEPT.get(key)
    if found is None:
        found = _build(family_name, params, input_shape)
        # A search builds the same members again: to estimate, to compare and to show them. Deep
        # ones take megabytes each, and many of them must not fill the memory of a server.
        if len(found.layers) <= _MOST_KEPT_LAYERS:
            if len(_KEPT) >= _MOST_KEPT:
                _KEPT.clear()
            _KEPT[key] = found
    return found


def name_member(family_name: str, params: Mapping[str, int]) -> str:
    """Return the name of a member, such as ``cnn5:16,32,64,128``."""
    values = (str(params[key]) for key in FAMILIES[family_name].params)
    return f"{family_name}:{','.join(values)}"


def count_members(family_name: str) -> int:
    """Return the number of distinct random members that a family has."""
    family = FAMILIES[family_name]
    return math.prod(len(family.list_values(*one)) for one in family.params.items())


def draw_family(
    family_name: str, draw: Callable[[int, int], int], input_shape: Shape | None = None
) -> Network:
    """Return a random member: every parameter is uniform over the values that its family has.

    Args:
        family_name: Name of a family; parameters in it take the place of the original's.
        draw: Function of two bounds that returns a random integer, both bounds included.
        input_shape: Shape of one sample; the family's default if None.
    """
    bare_name, _, text = family_name.partition(":")
    family = FAMILIES[bare_name]
    params = {}
    for key, original in _parse_params(family_name, family, text).items():
        values = family.list_values(key, original)
        params[key] = original if key in family.fixed else values[draw(1, len(values)) - 1]
    return build_family(bare_name, params, input_shape)


def _build(family_name: str, params: Mapping[str, int], input_shape: Shape | None) -> Network:
    family = FAMILIES[family_name]
    _check_params(family_name, family, params)
    sample = family.input if input_shape is None else _make_input(family_name, family, input_shape)
    draft = NetworkDraft(sample.shape, sample.vocabulary)
    family.architecture(params, draft)
    return draft.finish(name_member(family_name, params))


def _parse_params(name: str, family: Family, text: str) -> dict[str, int]:
    params = dict(family.params)
    names = list(family.params)
    for position, word in enumerate(text.split(",") if text else []):
        key, equals, value = word.rpartition("=")
        if not equals:
            if position >= len(names):
                raise NetError(f"{name}: give at most {len(names)} values ({', '.join(names)})")
            key = names[position]
        if key not in params:
            raise NetError(f"{name}: unknown parameter {key!r}; give {', '.join(names)}")
        try:
            params[key] = int(value)
        except ValueError:
            raise NetError(f"{name}: {key} is {value!r}; give an integer") from None
    return params


def _check_params(name: str, family: Family, params: Mapping[str, int]) -> None:
    for key, value in params.items():
        step = family.steps.get(key, 1)
        if key in family.kernels and not (0 < value <= LARGEST_KERNEL and value % 2):
            raise NetError(
                f"{name}: {key} is {value}; give an odd number of at most {LARGEST_KERNEL}"
            )
        # Names of depths and numbers of blocks begin with d; all other parameters are widths.
        most = DEEPEST if key.startswith("d") else WIDEST
        if not step <= value <= most or value % step:
            number = f"a multiple of {step}" if step > 1 else "an integer"
            raise NetError(
                f"{name}: {key} is {value}; give {number} of at least {step} and at most {most:,}"
            )


def _make_input(name: str, family: Family, shape: Shape) -> Input:
    expected = len(family.input.shape)
    if max(shape, default=0) > WIDEST:
        raise NetError(f"{name}: the input has the size {max(shape)}; give at most {WIDEST:,}")
    if len(shape) != expected or min(shape, default=0) < 1:
        example = "x".join(map(str, family.input.shape))
        given = "x".join(map(str, shape)) or "none"
        raise NetError(f"{name}: the input is {given}; give {expected} sizes, such as {example}")
    return replace(family.input, shape=shape)
