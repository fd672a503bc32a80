"""Check and convert what callers give as options, so that a wrong value is one clear line.

    int      a whole number, of NumPy or PyTorch too
    float    any number but NaN
    str      text, a path, or a ``torch.device``
    tuple    a list or tuple of these, or one of them alone

None leaves an option at its default. Ranges are checked by the records themselves.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from joulecast.errors import InputError

if TYPE_CHECKING:
    import torch

    DeviceLike = str | os.PathLike[str] | torch.device

# Options of type str that may also be a function.
_FUNCTIONS = ("loss",)


def convert_options(record: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a record, as the types that the fields have.

    Raises:
        InputError: A value has another type.
    """
    hints = _list_types(record)
    return {
        name: convert_option(name, value, hints[name])
        for name, value in options.items()
        if name in hints and value is not None
    }


def convert_option(name: str, value: Any, hint: Any) -> Any:
    """Return a value as a type, which may be optional or a tuple.

    Raises:
        InputError: The value has another type.
    """
    if name in _FUNCTIONS and callable(value):
        return value
    if isinstance(hint, UnionType):
        (hint,) = [one for one in get_args(hint) if one is not NoneType]
    if get_origin(hint) is tuple:
        values = value if isinstance(value, (list, tuple)) else (value,)
        return tuple(convert_option(name, one, get_args(hint)[0]) for one in values)
    return _CONVERTERS[hint](value, name) if hint in _CONVERTERS else value


def convert_shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of one sample as a tuple of sizes; None where none is given."""
    if value is None:
        return None
    sizes = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not sizes or not all(_is_count(size) for size in sizes):
        raise InputError(
            f"input_shape is {value!r}: give the sizes of one sample, like (3, 96, 96)"
        )
    return tuple(map(operator.index, sizes))


def convert_on(value: Any) -> str:
    """Return the name of a device of this machine, which may be a ``torch.device``."""
    return _convert_text(value, "on")


def is_torch_device(value: Any) -> bool:
    """Return whether a value is a ``torch.device``; does not import PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.device)


@cache
def _list_types(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def _convert_flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}: give True or False")
    return value


def _convert_count(value: Any, name: str) -> int:
    if not _is_index(value):
        raise InputError(f"{name} is {value!r}: give a whole number")
    return operator.index(value)


def _convert_number(value: Any, name: str) -> float:
    try:
        # Text has no __float__, although float() reads it.
        number = float("nan") if isinstance(value, bool) else float(value.__float__())
    except (AttributeError, TypeError, ValueError, RuntimeError, OverflowError):
        number = float("nan")
    if number != number:
        raise InputError(f"{name} is {value!r}: give a number")
    return number


def _convert_text(value: Any, name: str) -> str:
    if is_torch_device(value):
        return str(value)
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{name} is {value!r}: give text")
    return os.fspath(value)


def _is_count(value: Any) -> bool:
    return _is_index(value) and operator.index(value) >= 1


def _is_index(value: Any) -> bool:
    """Return whether a value is a whole number; NumPy's and PyTorch's are not of the type int."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


_CONVERTERS: dict[Any, Callable[[Any, str], Any]] = {
    bool: _convert_flag,
    int: _convert_count,
    float: _convert_number,
    str: _convert_text,
}
