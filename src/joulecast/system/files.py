"""Read data that others may have written: within limits of size and depth, as one-line errors.

A small file can contain much: packed data grows a thousandfold when it is unpacked, and a list of
a hundred megabytes takes gigabytes of memory once it is parsed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import zlib
from pathlib import Path
from reprlib import Repr
from typing import Any

from joulecast.system.errors import FileError

MOST_JSON_BYTES = 64 * 2**20
"""Size of a profile or network file; the shipped profile of 5,000 observations has 2 MiB."""
MOST_TOML_BYTES = 2**20
MOST_UNPACKED_BYTES = 128 * 2**20
"""Size of unpacked data: a hundred thousand observations."""
MOST_LEVELS = 100
"""Depth of nested values; files of observations have 12. Python's recursion limit cannot serve as
the limit, because PyTorch raises it for the whole process when it compiles a module."""

_TOO_DEEP = "it is nested too deeply"
_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'[]{}"'))
_AS_SQUARE_BRACKETS = bytes.maketrans(b"{}", b"[]")
_TOO_MANY_BRACKETS = b"[" * (MOST_LEVELS + 1)
_TOML_STRING_OR_COMMENT = (
    rb"""(?s)"{3}(?:\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5}"""
    rb"""|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*"""
)
_DEEP_TOML_KEY = rb"(?:\.[^.,=\n]*){%d}" % (MOST_LEVELS + 1)
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60
# Of the name of a file that is being written, in its temporary name: names may not become too long.
_LONGEST_PART = 40


def read_limited(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file.

    Raises:
        FileError: The file is missing, cannot be read, or is larger than ``most_bytes``.
    """
    try:
        with path.open("rb") as file:
            # A device or a pipe has no size that could be asked for before.
            content = file.read(most_bytes + 1)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}: check the path") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{path} cannot be read ({reason}): give another file") from error
    if len(content) > most_bytes:
        raise FileError(f"{path} is larger than {most_bytes // 2**20} MiB: give a smaller file")
    return content


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: The text is not JSON, contains NaN or Infinity, or has more than
            ``MOST_LEVELS`` levels.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if _is_deep_json(text):
        raise ValueError(_TOO_DEEP)
    return json.loads(text, parse_constant=_refuse_constant)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        FileError: The file cannot be read, is not TOML, or has more than ``MOST_LEVELS`` levels.
    """
    content = read_limited(path, MOST_TOML_BYTES)
    try:
        return _parse_toml(content)
    except ValueError as error:
        reason = first_line(error)
        raise FileError(f"{path} is not valid TOML ({reason}): correct or remove it") from error


def write_atomically(content: bytes, path: Path, *, is_program: bool = False) -> None:
    """Write a file whole or not at all, and replace one that is there."""
    # In the same folder, because moving is atomic only within one file system.
    partial = path.parent / f".{path.name[:_LONGEST_PART]}.{secrets.token_hex(8)}.partial"
    try:
        _write_safely(content, partial)
        try:
            if is_program:
                mode = partial.stat().st_mode
                # Whoever may read it may run it.
                partial.chmod(mode | (mode & 0o444) >> 2)
            partial.replace(path)
        except BaseException:
            partial.unlink()
            raise
        _sync(path.parent)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{path} cannot be written ({reason}): give another path") from error


def write_text(path: Path, text: str) -> None:
    """Write a text where the user wants it, be it a pipe; raise FileError if that is impossible."""
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {path} ({reason}): give another file") from error


def decompress(data: bytes, most_bytes: int = MOST_UNPACKED_BYTES) -> bytes:
    """Return the content of data that zlib compressed.

    Raises:
        ValueError: The data is damaged, or its content is larger than ``most_bytes``.
    """
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(content) > most_bytes:
        raise ValueError(f"it unpacks to more than {most_bytes // 2**20} MiB")
    if not unpacker.eof:
        raise ValueError("its packed data is incomplete")
    return content


def show_value(value: Any) -> str:
    """Return a value as Python writes it, shortened for a message."""
    try:
        return _SHORT.repr(value)
    except ValueError:
        # Python refuses to write integers of thousands of digits.
        return "a number of thousands of digits"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).split("\n", 1)[0]


def _parse_toml(content: bytes) -> dict[str, Any]:
    # Most commands find no TOML file to read.
    import tomllib

    text = content.decode()
    # Before the text is parsed: memory grows with the square of a key's parts.
    if _is_deep_toml(content):
        raise ValueError(_TOO_DEEP)
    data = tomllib.loads(text)
    if _is_deep(data):
        raise ValueError(_TOO_DEEP)
    return data


def _is_deep_json(text: str) -> bool:
    """Return whether a JSON text has more than ``MOST_LEVELS`` levels, without parsing it."""
    content = text.encode("utf-8", "surrogatepass")
    if b"\\" in content:
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = content.translate(_AS_SQUARE_BRACKETS, _NEITHER_BRACKET_NOR_QUOTE)
    # A string without brackets is now two quotes, which is most of them.
    brackets = brackets.replace(b'""', b"")
    return _are_deep(b"".join(brackets.split(b'"')[::2]))


def _is_deep_toml(content: bytes) -> bool:
    """Return whether a TOML text has brackets or a key of more than ``MOST_LEVELS`` levels."""
    plain = re.sub(_TOML_STRING_OR_COMMENT, b"", content)
    brackets = plain.translate(_AS_SQUARE_BRACKETS, _NEITHER_BRACKET_NOR_QUOTE)
    return _are_deep(brackets) or re.search(_DEEP_TOML_KEY, plain) is not None


def _are_deep(brackets: bytes) -> bool:
    """Return whether square brackets have more than ``MOST_LEVELS`` levels.

    If they do not match, a parser gets at most twice as deep before it refuses them.
    """
    for _ in range(MOST_LEVELS):
        if b"[]" not in brackets or _TOO_MANY_BRACKETS in brackets:
            break
        # Remove the innermost level of every value.
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets or _TOO_MANY_BRACKETS in brackets


def _is_deep(value: Any) -> bool:
    """Return whether a parsed value has more than ``MOST_LEVELS`` levels below the outermost."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        values = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for inner in values for one in inner if isinstance(one, (dict, list))]
    return bool(level)


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _write_safely(content: bytes, path: Path) -> None:
    """Write a new file, whole and on disk when this returns, or none at all."""
    # In a folder that others can write, a link of this name would lead to a file of the user.
    with path.open("xb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
