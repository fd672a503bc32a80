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
numbers, valid text and a limited depth. An error says where in the record the value is.

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
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial, wraps
from itertools import repeat
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from joulecast.system.errors import FileError, InputError
from joulecast.system.files import show_value

if TYPE_CHECKING:
    from typing import Self

Json = dict[str, Any]
Convert = Callable[[Any], Any]
R = TypeVar("R", bound="Record")
T = TypeVar("T")

_CODECS: dict[Any, tuple[Convert, Convert]] = {}
_ENCODERS: dict[type, Convert] = {}
_DECODERS: dict[type, Convert] = {}
_CHECKS: dict[type, list[tuple[str, Convert]]] = {}
# How often a record may contain one of its own class; blocks of layers have one level.
_MOST_NESTED = 8
_NESTING = threading.local()
_COMPILING = threading.RLock()
_STARTED: set[tuple[type, Any]] = set()
# Items of a list that declares no limit.
_MOST_ITEMS = 1_000_000


class Record:
    """Base of dataclasses (without ``slots=True``) that convert to JSON and back exactly."""

    __slots__ = ()

    def to_dict(self) -> Json:
        """Return the record as JSON values."""
        encoded: Json = _find_encoder(type(self))(self)
        return encoded

    @classmethod
    def from_dict(cls, data: Json) -> Self:
        """Return the record that ``to_dict`` wrote.

        Raises:
            InputError: A value does not fit the type or the limits of its field, a field is
                missing, or there is one that this record does not have.
        """
        record: Self = _find_decoder(cls)(data)
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
    _CODECS[cls] = encode, decode


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
    cls = type(record)
    if cls not in _CHECKS:
        stored = [(one.name, hint) for one, _, hint in _stored_fields(cls) if _is_leaf(hint)]
        _CHECKS[cls] = [(name, _find_decode(hint)) for name, hint in stored]
    for name, check in _CHECKS[cls]:
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


@dataclass(frozen=True)
class Choices:
    """The texts that a field allows."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class MaxLength:
    """The largest number of items that a list may have."""

    most: int


_ANY_NUMBER = Range(-math.inf, math.inf)
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


def check_integers(limits: Range = _ANY_INTEGER) -> Convert:
    """Return the check of an integer."""
    least, most = limits.least, limits.most

    def check(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            at_least = "" if limits == _ANY_INTEGER else f" of at least {least}"
            raise refuse_value(value, f"give a whole number{at_least}")
        if value > most:
            raise refuse_value(value, f"give at most {most:,}")
        return value

    return check


def check_numbers(limits: Range = _ANY_NUMBER) -> Convert:
    """Return the check of a float; integers are numbers too."""
    least, most, tiny = limits.least, limits.most, limits.tiny

    def check(value: Any) -> Any:
        if type(value) is float and least <= value <= most and tiny <= abs(value) < math.inf:
            return value
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise refuse_value(value, "give a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise refuse_value(value, "give a finite number")
        if not least <= value <= most:
            side = f"least {least:g}" if value < least else f"most {most:g}"
            raise refuse_value(value, f"give a number of at {side}")
        if 0 < abs(value) < tiny:
            raise refuse_value(value, f"give 0, or a number of at least {tiny:g}")
        if isinstance(value, int) and value.bit_length() > 1000:
            raise refuse_value(value, "give a number that fits a float")
        return value

    return check


def check_texts(choices: Choices | None = None) -> Convert:
    """Return the check of a text."""
    allowed = () if choices is None else choices.values

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            raise refuse_value(value, "give a text")
        if choices is not None and value not in allowed:
            raise refuse_value(value, f"choose one of {', '.join(allowed)}")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                # Half of a surrogate pair can be neither stored nor printed.
                raise refuse_value(value, "give text that is valid Unicode") from error
        return value

    return check


def check_flag(value: Any) -> Any:
    """Return a truth value, or raise an error for any other value."""
    if value is True or value is False:
        return value
    raise refuse_value(value, "give true or false")


def check_list(value: Any, limit: MaxLength | None = None) -> Any:
    """Return a list or a tuple, or raise an error for any other value and for one too long."""
    if not isinstance(value, (list, tuple)):
        raise refuse_value(value, "give a list")
    most = _MOST_ITEMS if limit is None else limit.most
    if len(value) > most:
        raise InvalidFieldError(f"has {len(value):,} items: give at most {most:,}")
    return value


def check_object(value: Any) -> Any:
    """Return a JSON object, or raise an error for any other value and for odd names in it."""
    if not isinstance(value, dict):
        raise refuse_value(value, "give an object")
    for name in value:
        _check_name(name)
    return value


_check_name = check_texts()


# ---------------------------------------------------------------------------------------------
# Encode


def _find_encoder(cls: type) -> Convert:
    return _ENCODERS.get(cls) or _compile_once(
        cls, _ENCODERS, _compile_encoder, lambda cls, value: _find_encoder(cls)(value)
    )


def _compile_once(
    cls: type,
    compiled: dict[type, Convert],
    compile_class: Callable[[type], Convert],
    convert_nested: Callable[[type, Any], Any],
) -> Convert:
    """Return the converter of a class, which one thread compiles while others wait.

    A class that contains itself needs its own converter before that is ready: it gets one that
    looks it up when it is used.
    """
    with _COMPILING:
        if cls in compiled:
            return compiled[cls]
        if (cls, compile_class) in _STARTED:
            return partial(convert_nested, cls)
        _STARTED.add((cls, compile_class))
        try:
            compiled[cls] = compile_class(cls)
        finally:
            _STARTED.discard((cls, compile_class))
        return compiled[cls]


def _compile_encoder(cls: type) -> Convert:
    always, omitted = [], []
    for one, key, hint in _stored_fields(cls):
        convert = _find_encode(hint)
        if one.metadata.get("omit_default"):
            omitted.append((one.name, key, convert, one.default))
        else:
            always.append((one.name, key, convert))

    def encode(record: Any) -> Json:
        values = record.__dict__
        data: Json = {}
        for name, key, convert in always:
            value = values[name]
            data[key] = value if convert is None else convert(value)
        for name, key, convert, default in omitted:
            value = values[name]
            if value != default:
                data[key] = value if convert is None else convert(value)
        return data

    return encode


def _find_encode(hint: Any) -> Convert | None:
    """Return the encoder of an annotation; None where values pass unchanged."""
    codec = _find_codec(hint)
    if codec is not None:
        return codec[0]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _find_encode(args[0])
    if isinstance(hint, type) and issubclass(hint, Record):
        # A class may add derived values in a to_dict of its own.
        return _find_encoder(hint) if hint.to_dict is Record.to_dict else hint.to_dict
    if origin in (Union, types.UnionType):
        encoders = [found for one in args if (found := _find_encode(one)) is not None]
        if len(encoders) > 1:
            raise TypeError(f"{args} is ambiguous: a field may hold one type of record, or None")
        optional = encoders[0] if encoders else None
        return optional and (lambda value: None if value is None else optional(value))
    if origin is tuple and args[-1] is not Ellipsis:
        each = [_find_encode(one) or _keep for one in args]
        return lambda values: [convert(one) for convert, one in zip(each, values, strict=True)]
    if origin in (tuple, Sequence):
        item = _find_encode(args[0])
        return (lambda values: [item(one) for one in values]) if item else list
    if isinstance(origin, type) and issubclass(origin, Mapping):
        value = _find_encode(args[1])
        return (lambda values: {k: value(one) for k, one in values.items()}) if value else dict
    return None


def _keep(value: Any) -> Any:
    return value


def _find_codec(hint: Any) -> tuple[Convert, Convert] | None:
    return _CODECS.get(hint) or _CODECS.get(get_origin(hint))


# ---------------------------------------------------------------------------------------------
# Decode and check


def _find_decoder(cls: type) -> Convert:
    return _DECODERS.get(cls) or _compile_once(cls, _DECODERS, _compile_decoder, _decode_nested)


def _compile_decoder(cls: type) -> Convert:
    stored = _stored_fields(cls)
    plan = {key: (one.name, _find_decode(hint)) for one, key, hint in stored}
    required = [
        key
        for one, key, _ in stored
        if (one.default is MISSING and one.default_factory is MISSING)
        or one.metadata.get("always_stored")
    ]

    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise refuse_value(data, f"give an object with the fields of a {cls.__name__}")
        values = {}
        for key, value in data.items():
            if key not in plan:
                raise InvalidFieldError(f"{cls.__name__} has no field {show_value(key)}")
            name, convert = plan[key]
            try:
                values[name] = convert(value)
            except InvalidFieldError as error:
                raise error.within(key) from None
        for key in required:
            if key not in data:
                raise InvalidFieldError("is missing", (key,))
        return cls(**values)

    return decode


def _decode_nested(cls: type, value: Any) -> Any:
    """Decode a record inside one of its own class, down to a limited depth."""
    depth = getattr(_NESTING, "depth", 0)
    if depth >= _MOST_NESTED:
        raise InvalidFieldError(f"is more than {_MOST_NESTED} levels deep")
    _NESTING.depth = depth + 1
    try:
        return _find_decoder(cls)(value)
    finally:
        _NESTING.depth = depth


def _find_decode(hint: Any, *limits: Any) -> Convert:
    """Return what decodes and checks values of an annotation within declared limits."""
    codec = _find_codec(hint)
    if codec is not None:
        return partial(_decode_other, codec[1])
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _find_decode(*args)
    if hint in _LEAVES:
        return _LEAVES[hint](*limits)
    if hint is bool:
        return check_flag
    if isinstance(hint, type) and issubclass(hint, Record):
        is_inherited = hint.from_dict.__func__ is Record.from_dict.__func__  # type: ignore[attr-defined]
        return _find_decoder(hint) if is_inherited else hint.from_dict
    if origin in (Union, types.UnionType):
        return _decode_union(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _decode_items([_find_decode(one) for one in args], len(args))
    if origin in (tuple, Sequence):
        return _decode_items(repeat(_find_decode(args[0])), None, *limits)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _decode_mapping(_find_decode(args[1]))
    return _keep


_LEAVES: dict[Any, Callable[..., Convert]] = {
    int: check_integers,
    float: check_numbers,
    str: check_texts,
}


def _is_leaf(hint: Any) -> bool:
    """Return whether an annotation is that of a number, a text, a flag, or one of these or None."""
    args = get_args(hint)
    if get_origin(hint) is Annotated:
        return _is_leaf(args[0])
    if get_origin(hint) in (Union, types.UnionType):
        return all(map(_is_leaf, args))
    return hint in (*_LEAVES, bool, type(None))


def _decode_other(convert: Convert, value: Any) -> Any:
    """Decode a value by a codec that was added."""
    try:
        return convert(value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise refuse_value(value, str(error).split("\n", 1)[0]) from error


def _decode_union(args: tuple[Any, ...]) -> Convert:
    decoders = [_find_decode(one) for one in args if one is not type(None)]
    if len(decoders) == 1:
        convert = decoders[0]
        return lambda value: None if value is None else convert(value)

    def decode(value: Any) -> Any:
        if value is None and type(None) in args:
            return None
        for convert in decoders[:-1]:
            try:
                return convert(value)
            except InvalidFieldError:
                continue
        return decoders[-1](value)

    return decode


def _decode_items(
    each: Iterable[Convert], count: int | None, limit: MaxLength | None = None
) -> Convert:
    def decode(values: Any) -> tuple[Any, ...]:
        check_list(values, limit)
        if count is not None and len(values) != count:
            raise InvalidFieldError(f"has {len(values)} values, {count} expected")
        items: list[Any] = []
        try:
            for convert, value in zip(each, values, strict=False):
                items.append(convert(value))
        except InvalidFieldError as error:
            raise error.within(len(items)) from None
        return tuple(items)

    return decode


def _decode_mapping(convert: Convert) -> Convert:
    def decode(values: Any) -> dict[str, Any]:
        decoded = {}
        for key, value in check_object(values).items():
            try:
                decoded[key] = convert(value)
            except InvalidFieldError as error:
                raise error.within(key) from None
        return decoded

    return decode
