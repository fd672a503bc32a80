"""Read data that others may have written: within limits of size and depth, as one-line errors.

A small file can contain much: packed data grows a thousandfold when it is unpacked, and a list of
a hundred megabytes takes gigabytes of memory once it is parsed.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from reprlib import Repr
from typing import Any

from joulecast.errors import FileError

MOST_JSON_BYTES = 64 * 2**20
"""Size of a profile or network file; the shipped profile of 5,000 observations has 2 MiB."""
MOST_TOML_BYTES = 2**20
MOST_UNPACKED_BYTES = 128 * 2**20
"""Size of unpacked data: a hundred thousand observations."""

_TOO_DEEP = "it is nested too deeply"
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


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
        ValueError: The text is not JSON, contains NaN or Infinity, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        FileError: The file cannot be read or is not TOML.
    """
    # Most commands find no TOML file to read.
    import tomllib

    content = read_limited(path, MOST_TOML_BYTES)
    try:
        return tomllib.loads(content.decode())
    except RecursionError:
        reason = _TOO_DEEP
    except ValueError as error:
        reason = first_line(error)
    raise FileError(f"{path} is not valid TOML ({reason}): correct or remove it")


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


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")
