"""Convert frozen dataclasses to JSON values and back.

A record inherits ``to_dict`` and ``from_dict`` from ``Record``; its annotations say how each field
is written:

    int, float, str, bool, Any      as they are
    tuple[X, ...], tuple[X, Y]      a list
    Sequence[X]                     a list; a tuple when it is read
    X | None                        null, or X
    Record                          an object
    Mapping[str, X]                 an object
    types passed to add_codec       as their codec says

``omit_default`` leaves a field out of the JSON while it has its default, ``always_stored`` requires
it there, and ``not_stored`` never writes it. Each takes ``json_name="..."`` to write the field
under another name.

Converters are compiled once per class: a shipped profile holds twenty thousand records. Decoding
refuses unknown fields, so a file of a newer version never loads with a part missing. Standard
library only: the device side carries this module.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from joulecast.errors import FileError, InputError

if TYPE_CHECKING:
    from typing import Self

Json = dict[str, Any]
Convert = Callable[[Any], Any]

R = TypeVar("R", bound="Record")

_ENCODE, _DECODE = 0, 1
_CODECS: dict[Any, tuple[Convert, Convert]] = {}
_ENCODERS: dict[type, Convert] = {}
_DECODERS: dict[type, Convert] = {}


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
            KeyError: A field without default, or one that is always stored, is missing.
            ValueError: There is a field that this record does not have.
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
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{what} is damaged ({reason}); export it again") from error


def _make_field(metadata: Mapping[str, Any], json_name: str = "", **kwargs: Any) -> Any:
    named = {"json_name": json_name} if json_name else {}
    return field(metadata={**metadata, **named}, **kwargs)


def _stored_fields(cls: type) -> list[tuple[Field[Any], str, Any]]:
    """Return each stored field with its JSON name and its resolved annotation."""
    hints = get_type_hints(cls)
    return [
        (one, one.metadata.get("json_name", one.name), hints[one.name])
        for one in fields(cls)
        if not one.metadata.get("not_stored")
    ]


def _find_encoder(cls: type) -> Convert:
    return _ENCODERS.get(cls) or _compile_encoder(cls)


def _find_decoder(cls: type) -> Convert:
    return _DECODERS.get(cls) or _compile_decoder(cls)


def _compile_encoder(cls: type) -> Convert:
    _ENCODERS[cls] = _look_up_later(_ENCODERS, cls)
    always, omitted = [], []
    for one, key, hint in _stored_fields(cls):
        convert = _find_converter(hint, _ENCODE)
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

    _ENCODERS[cls] = encode
    return encode


def _compile_decoder(cls: type) -> Convert:
    _DECODERS[cls] = _look_up_later(_DECODERS, cls)
    stored = _stored_fields(cls)
    plan = {key: (one.name, _find_converter(hint, _DECODE)) for one, key, hint in stored}
    required = [key for one, key, _ in stored if _is_required(one)]

    def decode(data: Json) -> Any:
        values = {}
        for key, value in data.items():
            if key not in plan:
                raise ValueError(f"{cls.__name__} has no field {key!r}")
            name, convert = plan[key]
            values[name] = value if convert is None else convert(value)
        for key in required:
            if key not in data:
                raise KeyError(key)
        return cls(**values)

    _DECODERS[cls] = decode
    return decode


def _look_up_later(converters: Mapping[type, Convert], cls: type) -> Convert:
    """Return a stand-in for a converter being compiled: a layer may contain layers."""

    def convert(value: Any) -> Any:
        return converters[cls](value)

    return convert


def _is_required(one: Field[Any]) -> bool:
    has_default = one.default is not MISSING or one.default_factory is not MISSING
    return not has_default or bool(one.metadata.get("always_stored"))


def _find_converter(hint: Any, direction: int) -> Convert | None:
    """Return the encoder or decoder of an annotation; None where values pass unchanged."""
    if hint in _CODECS:
        return _CODECS[hint][direction]
    origin, args = get_origin(hint), get_args(hint)
    if origin in _CODECS:
        return _CODECS[origin][direction]
    if isinstance(hint, type) and issubclass(hint, Record):
        return _convert_record(hint, direction)
    if origin in (Union, types.UnionType):
        return _convert_optional(args, direction)
    if origin is tuple:
        return _convert_tuple(args, direction)
    if origin is Sequence:
        return _convert_tuple((*args, Ellipsis), direction)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _convert_mapping(args, direction)
    return None


def _convert_record(cls: type[Record], direction: int) -> Convert:
    # A class may add derived values in a to_dict of its own.
    if direction == _ENCODE:
        return _find_encoder(cls) if cls.to_dict is Record.to_dict else cls.to_dict
    is_inherited = cls.from_dict.__func__ is Record.from_dict.__func__  # type: ignore[attr-defined]
    return _find_decoder(cls) if is_inherited else cls.from_dict


def _convert_optional(args: tuple[Any, ...], direction: int) -> Convert | None:
    converters = [
        found
        for one in args
        if one is not type(None) and (found := _find_converter(one, direction)) is not None
    ]
    if not converters:
        return None
    if len(converters) > 1:
        raise TypeError(f"{args} is ambiguous: a field may hold one type of record, or None")
    convert = converters[0]
    return lambda value: None if value is None else convert(value)


def _convert_tuple(args: tuple[Any, ...], direction: int) -> Convert:
    outer: Convert = list if direction == _ENCODE else tuple
    if len(args) == 2 and args[1] is Ellipsis:
        convert = _find_converter(args[0], direction)
        return outer if convert is None else lambda values: outer([convert(one) for one in values])
    each = [_find_converter(one, direction) or _keep for one in args]

    def convert_fixed(values: Any) -> Any:
        if len(values) != len(each):
            raise ValueError(f"{len(each)} values expected, found {len(values)}")
        return outer([convert(value) for convert, value in zip(each, values, strict=True)])

    return convert_fixed


def _keep(value: Any) -> Any:
    return value


def _convert_mapping(args: tuple[Any, ...], direction: int) -> Convert:
    convert = _find_converter(args[1], direction) if args else None
    if convert is None:
        return dict
    return lambda values: {key: convert(value) for key, value in values.items()}
