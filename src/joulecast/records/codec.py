"""Convert frozen dataclasses to JSON values and back.

A record inherits ``to_dict`` and ``from_dict`` from ``Record``; its annotations say how each field
is written:

    int, float, str, bool, Any      as they are
    Annotated[X, ...]               X within limits (``Range``, ``Choices``, ``MaxLength``)
    tuple[X, ...], tuple[X, Y]      a list
    Sequence[X]                     a list; a tuple when it is read
    X | None                        null, or X
    Record                          an object
    Mapping[str, X]                 an object
    types passed to add_codec       as their codec says

Annotations are also the schema that everything decoded has to fit: types, declared limits, finite
numbers and valid text. An error says where in the record the value is.

``omit_default`` leaves a field out of the JSON while it has its default, ``always_stored`` requires
it there, and ``not_stored`` never writes it. Each takes ``json_name="..."`` to write the field
under another name.

Converters are compiled once per class: a shipped profile holds twenty thousand records. Decoding
refuses unknown fields, so a file of a newer version never loads with a part missing. Standard
library only: the device side carries this module.
"""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache, partial, wraps
from itertools import repeat
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from joulecast.system.errors import FileError, InputError
from joulecast.system.files import first_line, show_value

if TYPE_CHECKING:
    from typing import Self

Json = dict[str, Any]
Convert = Callable[[Any], Any]
R = TypeVar("R", bound="Record")
T = TypeVar("T")


class Record:
    """Base of dataclasses (without ``slots=True``) that convert to JSON and back exactly."""

    __slots__ = ()

    def to_dict(self) -> Json:
        """Return the record as JSON values."""
        encoded: Json = _compile(type(self)).encode(self)
        return encoded

    @classmethod
    def from_dict(cls, data: Json) -> Self:
        """Return the record that ``to_dict`` wrote.

        Raises:
            InputError: A value does not fit the type or the limits of its field, a field is
                missing, or there is one that this record does not have.
        """
        record: Self = _compile(cls).decode(data)
        return record


def omit_default(default: Any, **kwargs: Any) -> Any:
    """Return a dataclass field that is written only where it differs from its default."""
    return _make_field({"omit_default": True}, default=default, **kwargs)


def always_stored(**kwargs: Any) -> Any:
    """Return a dataclass field that JSON must contain, although Python may leave it out."""
    return _make_field({"always_stored": True}, **kwargs)


def not_stored(default: Any, **kwargs: Any) -> Any:
    """Return a dataclass field that is never written."""
    return _make_field({"not_stored": True}, default=default, **kwargs)


def add_codec(cls: Any, encode: Convert, decode: Convert) -> None:
    """Register how values of a type that is not a Record are written and read.

    Call it before the first record with such a field is converted.
    """
    _CODECS[cls] = _Codec(encode, partial(_decode_other, decode))


def load_record(cls: type[R], data: Any, what: str) -> R:
    """Return ``cls.from_dict(data)`` for data from outside.

    Raises:
        FileError: Anything is wrong with ``data``; ``what`` names it.
    """
    try:
        return cls.from_dict(data)
    except InputError as error:
        raise FileError(f"{what} is damaged ({error}); export it again") from error


def check_fields(record: Record) -> None:
    """Raise InputError for the first number, text or flag that its field does not allow.

    For ``__post_init__`` of records that are made from what a user or a meter says. Whatever is
    decoded is checked anyway.
    """
    for name, check in _compile(type(record)).checks:
        try:
            check(getattr(record, name))
        except InvalidFieldError as error:
            raise error.within(name) from None


def load_partial(cls: type[R], data: Any, what: str) -> R:
    """Return a record from data with more fields than it has, as results of commands have.

    Raises:
        FileError: A field is missing, or a value does not fit; ``what`` names the data.
    """
    return load_record(cls, _drop_unknown(cls, data), what)


def cache_on_record(function: Callable[[R], T]) -> Callable[[R], T]:
    """Decorate a function of one record, so that it runs once for each record.

    Results are kept on the record, and live as long as it does: a large network takes long to hash,
    so that a dictionary of results would cost more than it saves.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def find(record: R) -> T:
        cached = vars(record)
        if name not in cached:
            cached[name] = function(record)
        value: T = cached[name]
        return value

    return find


def stable_hash(data: Any) -> str:
    """Return sixteen hex digits that depend only on the JSON value."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _make_field(metadata: Mapping[str, Any], json_name: str = "", **kwargs: Any) -> Any:
    return field(metadata={**metadata, "json_name": json_name}, **kwargs)


def _stored_fields(cls: type) -> list[tuple[Field[Any], str, Any]]:
    """Return each stored field with its JSON name and its resolved annotation."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        (one, one.metadata.get("json_name") or one.name, hints[one.name])
        for one in fields(cls)
        if not one.metadata.get("not_stored")
    ]


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


# ---------------------------------------------------------------------------------------------
# Limits and checks of single values


@dataclass(frozen=True)
class Range:
    """The numbers that a field allows; both ends belong to it.

    Attributes:
        tiny: Numbers closer to 0 are refused, except 0 itself: their inverse is infinite.
    """

    least: float
    most: float
    tiny: float = 0.0

    def check_integer(self, value: Any) -> Any:
        """Return an integer, or raise an error for any other value."""
        if not isinstance(value, int) or isinstance(value, bool) or value < self.least:
            at_least = "" if self == _ANY_INTEGER else f" of at least {self.least}"
            raise refuse_value(value, f"give a whole number{at_least}")
        if value > self.most:
            raise refuse_value(value, f"give at most {self.most:,}")
        return value

    def check_number(self, value: Any) -> Any:
        """Return a number, or raise an error for any other value; integers are numbers too."""
        is_float = type(value) is float
        if is_float and self.least <= value <= self.most and self.tiny <= abs(value) < math.inf:
            return value
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise refuse_value(value, "give a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise refuse_value(value, "give a finite number")
        if not self.least <= value <= self.most:
            side = f"least {self.least:g}" if value < self.least else f"most {self.most:g}"
            raise refuse_value(value, f"give a number of at {side}")
        if 0 < abs(value) < self.tiny:
            raise refuse_value(value, f"give 0, or a number of at least {self.tiny:g}")
        if isinstance(value, int) and value.bit_length() > 1000:
            raise refuse_value(value, "give a number that fits a float")
        return value


@dataclass(frozen=True)
class Choices:
    """The texts that a field allows; all of them if none is listed."""

    values: tuple[str, ...] = ()

    def check_text(self, value: Any) -> Any:
        """Return a text, or raise an error for any other value."""
        if not isinstance(value, str):
            raise refuse_value(value, "give a text")
        if self.values and value not in self.values:
            raise refuse_value(value, f"choose one of {', '.join(self.values)}")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                # Half of a surrogate pair can be neither stored nor printed.
                raise refuse_value(value, "give text that is valid Unicode") from error
        return value


@dataclass(frozen=True)
class MaxLength:
    """The largest number of items that a list may have."""

    most: int = 1_000_000

    def check_list(self, value: Any) -> Any:
        """Return a list or a tuple, or raise an error for any other value and for one too long."""
        if not isinstance(value, (list, tuple)):
            raise refuse_value(value, "give a list")
        if len(value) > self.most:
            raise InvalidFieldError(f"has {len(value):,} items: give at most {self.most:,}")
        return value


ANY_NUMBER, ANY_TEXT, ANY_LENGTH = Range(-math.inf, math.inf), Choices(), MaxLength()
# A larger integer fits no database and no array.
_ANY_INTEGER = Range(-(2**63), 2**63 - 1)

Amount = Annotated[float, Range(0.0, 1e15, tiny=1e-60)]
"""A quantity that is never negative, such as joules or seconds."""
Share = Annotated[float, Range(0.0, 1.0)]
"""A share of a whole."""
Count = Annotated[int, Range(0, 10**9)]
"""A number of things, perhaps none."""
PositiveCount = Annotated[int, Range(1, 10**9)]
"""A number of things, at least one."""
ByteCount = Annotated[int, Range(0, 2**63 - 1)]
"""A size in memory."""
UnixTime = Annotated[float, Range(0.0, 253_402_300_799.0)]
"""Seconds since 1970, up to the year 9999, the last that a calendar can show."""


class InvalidFieldError(InputError):
    """A value that its field does not allow, with the path to the field."""

    def __init__(self, reason: str, path: tuple[str | int, ...] = ()) -> None:
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
        super().__init__(f"{''.join(steps).lstrip('.')} {reason}")
        self.reason = reason
        self.path = path

    def within(self, step: str | int) -> InvalidFieldError:
        """Return the error as seen from the record or list that contains the value."""
        return InvalidFieldError(self.reason, (step, *self.path))


def refuse_value(value: Any, advice: str) -> InvalidFieldError:
    """Return the error for a value, with what to give instead."""
    return InvalidFieldError(f"is {show_value(value)}: {advice}")


def check_flag(value: Any) -> Any:
    """Return a truth value, or raise an error for any other value."""
    if value is True or value is False:
        return value
    raise refuse_value(value, "give true or false")


def check_object(value: Any) -> Any:
    """Return a JSON object, or raise an error for any other value and for odd names in it."""
    if not isinstance(value, dict):
        raise refuse_value(value, "give an object")
    for name in value:
        ANY_TEXT.check_text(name)
    return value


# ---------------------------------------------------------------------------------------------
# Converters


class _Codec(NamedTuple):
    """How values are written, and how they are read and checked.

    Attributes:
        checks: Of a record, how its numbers, texts and flags are checked.
    """

    encode: Convert
    decode: Convert
    checks: tuple[tuple[str, Convert], ...] = ()


def _keep(value: Any) -> Any:
    return value


_CODECS: dict[Any, _Codec] = {}
_LEAVES: dict[Any, Callable[..., Convert]] = {
    int: lambda limits=_ANY_INTEGER: limits.check_integer,
    float: lambda limits=ANY_NUMBER: limits.check_number,
    str: lambda limits=ANY_TEXT: limits.check_text,
    bool: lambda: check_flag,
}


def _compile_class(cls: type) -> _Codec:
    """Return the converters of a class of records."""
    hints = _stored_fields(cls)
    stored = [
        (one, key, _find_codec(hint), bool(one.metadata.get("omit_default")))
        for one, key, hint in hints
    ]
    checks = [(one.name, _find_codec(hint).decode) for one, _, hint in hints if _is_leaf(hint)]
    written = [(one.name, key, c.encode, omits, one.default) for one, key, c, omits in stored]
    read = {key: (one.name, codec.decode) for one, key, codec, _ in stored}
    required = [
        key
        for one, key, *_ in stored
        if (one.default is MISSING and one.default_factory is MISSING)
        or one.metadata.get("always_stored")
    ]

    def encode(record: Any) -> Json:
        values = record.__dict__
        data: Json = {}
        for name, key, convert, omits_default, default in written:
            value = values[name]
            if not (omits_default and value == default):
                data[key] = value if convert is _keep else convert(value)
        return data

    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise refuse_value(data, f"give an object with the fields of a {cls.__name__}")
        values = {}
        for key, value in data.items():
            if key not in read:
                raise InvalidFieldError(f"{cls.__name__} has no field {show_value(key)}")
            name, convert = read[key]
            try:
                values[name] = convert(value)
            except InvalidFieldError as error:
                raise error.within(key) from None
        for key in required:
            if key not in data:
                raise InvalidFieldError("is missing", (key,))
        return cls(**values)

    return _Codec(encode, decode, tuple(checks))


# Declared for type checkers, which do not take every class for hashable.
_compile: Callable[[type], _Codec] = cache(_compile_class)


@cache
def _find_codec(hint: Any, *limits: Any) -> _Codec:
    """Return the converters of an annotation with its declared limits."""
    origin, args = get_origin(hint), get_args(hint)
    if (known := _CODECS.get(hint) or _CODECS.get(origin)) is not None:
        return known
    if origin is Annotated:
        return _find_codec(*args)
    if hint in _LEAVES:
        return _Codec(_keep, _LEAVES[hint](*limits))
    if isinstance(hint, type) and issubclass(hint, Record):
        # Compiled when it is first used, because a class may contain itself. A class may also add
        # derived values in methods of its own.
        if hint.to_dict is not Record.to_dict:
            return _Codec(hint.to_dict, hint.from_dict)
        return _Codec(lambda record: _compile(hint).encode(record), hint.from_dict)
    if origin in (Union, types.UnionType):
        return _combine_codecs([_find_codec(one) for one in args if one is not NoneType], args)
    if origin is tuple and args[-1] is not Ellipsis:
        each = [_find_codec(one) for one in args]
        encoders, decoders = [one.encode for one in each], [one.decode for one in each]
        return _Codec(
            lambda values: [convert(one) for convert, one in zip(encoders, values, strict=True)],
            partial(_decode_items, decoders, len(args), ANY_LENGTH),
        )
    if origin in (tuple, Sequence):
        item = _find_codec(args[0])
        return _Codec(
            list if item.encode is _keep else lambda values: list(map(item.encode, values)),
            partial(_decode_items, repeat(item.decode), None, *(limits or (ANY_LENGTH,))),
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        value = _find_codec(args[1])
        return _Codec(
            dict
            if value.encode is _keep
            else lambda values: {key: value.encode(one) for key, one in values.items()},
            partial(_decode_mapping, value.decode),
        )
    return _Codec(_keep, _keep)


def _combine_codecs(codecs: Sequence[_Codec], args: tuple[Any, ...]) -> _Codec:
    """Return the converters of one of several types; None is not among ``codecs``."""
    encoders = [one.encode for one in codecs if one.encode is not _keep]
    if len(encoders) > 1:
        raise TypeError(f"{args} is ambiguous: a field may hold one type of record, or None")

    def encode(value: Any) -> Any:
        return None if value is None else encoders[0](value)

    def decode(value: Any) -> Any:
        if value is None and NoneType in args:
            return None
        for codec in codecs[:-1]:
            try:
                return codec.decode(value)
            except InvalidFieldError:
                continue
        return codecs[-1].decode(value)

    return _Codec(encode if encoders else _keep, decode)


def _decode_other(convert: Convert, value: Any) -> Any:
    """Decode a value by a codec that was added."""
    try:
        return convert(value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise refuse_value(value, first_line(error)) from error


def _decode_items(
    each: Iterable[Convert], count: int | None, limit: MaxLength, values: Any
) -> tuple[Any, ...]:
    limit.check_list(values)
    if count is not None and len(values) != count:
        raise InvalidFieldError(f"has {len(values)} values, {count} expected")
    items: list[Any] = []
    try:
        for convert, value in zip(each, values, strict=False):
            items.append(convert(value))
    except InvalidFieldError as error:
        raise error.within(len(items)) from None
    return tuple(items)


def _decode_mapping(convert: Convert, values: Any) -> dict[str, Any]:
    decoded = {}
    for key, value in check_object(values).items():
        try:
            decoded[key] = convert(value)
        except InvalidFieldError as error:
            raise error.within(key) from None
    return decoded


def _is_leaf(hint: Any) -> bool:
    """Return whether an annotation is that of a number, a text, a flag, or one of these or None."""
    args = get_args(hint)
    if get_origin(hint) is Annotated:
        return _is_leaf(args[0])
    if get_origin(hint) in (Union, types.UnionType):
        return all(map(_is_leaf, args))
    return hint in _LEAVES or hint is NoneType
