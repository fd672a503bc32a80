"""Read the part of a JSON result that a record describes; other fields are left to others.

Results of commands have more fields than a reader needs, and may get further ones. What is read
still has to fit the record.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from joulecast.records.codec import Record, load_record

R = TypeVar("R", bound=Record)


def load_partial(cls: type[R], data: Any, what: str) -> R:
    """Return a record from data with more fields than it has.

    Raises:
        FileError: A field is missing, or a value does not fit; ``what`` names the data.
    """
    return load_record(cls, _drop_unknown(cls, data), what)


def _drop_unknown(annotation: Any, value: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, Record):
        if not isinstance(value, Mapping):
            return value
        hints = get_type_hints(annotation)
        names = [field.name for field in fields(annotation)]  # type: ignore[arg-type]
        return {name: _drop_unknown(hints[name], value[name]) for name in names if name in value}
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is tuple and parts[-1] is Ellipsis and isinstance(value, list):
        return [_drop_unknown(parts[0], one) for one in value]
    if origin in (Union, types.UnionType):
        for part in parts:
            value = _drop_unknown(part, value)
    return value
