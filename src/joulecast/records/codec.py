"""Convert frozen dataclasses to JSON values and back.

A record inherits ``to_dict`` and ``from_dict`` from ``Record``; its annotations say how each field
is written:

    int, float, str, bool, Any      as they are
    Annotated[X, ...]               X within limits (``field_checks.py``)
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

import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from functools import partial
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

from joulecast.errors import FileError, InputError
from joulecast.input_files import show_value
from joulecast.records.field_checks import (
    InvalidFieldError,
    MaxLength,
    check_flag,
    check_integers,
    check_list,
    check_numbers,
    check_object,
    check_texts,
    refuse_value,
)

if TYPE_CHECKING:
    from typing import Self

Json = dict[str, Any]
Convert = Callable[[Any], Any]

R = TypeVar("R", bound="Record")

_ENCODE, _DECODE = 0, 1
_CODECS: dict[Any, tuple[Convert, Convert]] = {}
_ENCODERS: dict[type, Convert] = {}
_DECODERS: dict[type, Convert] = {}
_CHECKS: dict[type, list[tuple[str, Convert]]] = {}
# How often a record may contain one of its own class; blocks of layers have one level.
_MOST_NESTED = 8
_NESTING = threading.local()
_COMPILING = threading.RLock()
_STARTED: set[tuple[type, Any]] = set()


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
        _CHECKS[cls] = [
            (one.name, _find_decode(hint)) for one, _, hint in _stored_fields(cls) if _is_leaf(hint)
        ]
    for name, check in _CHECKS[cls]:
        try:
            check(getattr(record, name))
        except InvalidFieldError as error:
            raise error.within(name) from None


def _make_field(metadata: Mapping[str, Any], json_name: str = "", **kwargs: Any) -> Any:
    named = {"json_name": json_name} if json_name else {}
    return field(metadata={**metadata, **named}, **kwargs)


def _stored_fields(cls: type) -> list[tuple[Field[Any], str, Any]]:
    """Return each stored field with its JSON name and its resolved annotation."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        (one, one.metadata.get("json_name", one.name), hints[one.name])
        for one in fields(cls)
        if not one.metadata.get("not_stored")
    ]


def _is_required(one: Field[Any]) -> bool:
    has_default = one.default is not MISSING or one.default_factory is not MISSING
    return not has_default or bool(one.metadata.get("always_stored"))


# ---------------------------------------------------------------------------------------------
# Encode


def _find_encoder(cls: type) -> Convert:
    return _ENCODERS.get(cls) or _compile_once(cls, _ENCODERS, _compile_encoder, _encode_nested)


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


def _encode_nested(cls: type, value: Any) -> Any:
    """Encode a record inside one of its own class: a layer may contain layers."""
    return _find_encoder(cls)(value)


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
        return _encode_optional(args)
    if origin is tuple and args[-1:] != (Ellipsis,):
        return _encode_fixed([_find_encode(one) or _keep for one in args])
    if origin in (tuple, Sequence):
        return _encode_items(_find_encode(args[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _encode_mapping(_find_encode(args[1]))
    return None


def _encode_optional(args: tuple[Any, ...]) -> Convert | None:
    encoders = [found for one in args if (found := _find_encode(one)) is not None]
    if len(encoders) > 1:
        raise TypeError(f"{args} is ambiguous: a field may hold one type of record, or None")
    if not encoders:
        return None
    convert = encoders[0]
    return lambda value: None if value is None else convert(value)


def _encode_items(convert: Convert | None) -> Convert:
    return list if convert is None else lambda values: [convert(one) for one in values]


def _encode_mapping(convert: Convert | None) -> Convert:
    if convert is None:
        return dict
    return lambda values: {key: convert(value) for key, value in values.items()}


def _encode_fixed(each: Sequence[Convert]) -> Convert:
    return lambda values: [convert(value) for convert, value in zip(each, values, strict=True)]


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
    required = [key for one, key, _ in stored if _is_required(one)]

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
    if origin is tuple and args[-1:] != (Ellipsis,):
        return _decode_fixed([_find_decode(one) for one in args])
    if origin in (tuple, Sequence):
        return _decode_items(_find_decode(args[0]), *limits)
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


def _decode_items(convert: Convert, limit: MaxLength | None = None) -> Convert:
    def decode(values: Any) -> tuple[Any, ...]:
        items: list[Any] = []
        for one in check_list(values, limit):
            try:
                items.append(convert(one))
            except InvalidFieldError as error:
                raise error.within(len(items)) from None
        return tuple(items)

    return decode


def _decode_fixed(each: Sequence[Convert]) -> Convert:
    def decode(values: Any) -> tuple[Any, ...]:
        if len(check_list(values)) != len(each):
            raise InvalidFieldError(f"has {len(values)} values, {len(each)} expected")
        items: list[Any] = []
        for convert, value in zip(each, values, strict=True):
            try:
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
