"""Damage files and values at random, to test that everything read from outside is refused cleanly.

A reader of outside data may return, or raise one of our errors with a message of one short line.
Every other exception is a defect (``find_defect``).
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from joulecast.system.errors import JoulecastError

HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 1e300,
    5e-324, float("inf"), float("nan"), "", "0", "1e999", "nan", "additive", "x" * 300,
    "\x1b]52;c;aGk=\x07", "\x1b[2J", "\0", "\ud800", "\u202e", "a\nb", "../../etc/passwd",
    "$(touch hostile)", "evil.py:go", [], [0], [1, 2, 3], ["a", None], [[[[[[[[[[]]]]]]]]]],
    [1] * 2000, {}, {"": 0}, {"packed": "x"}, {"kind": "linear"},
)  # fmt: skip
"""Values that a JSON or TOML file may have where another type or range is expected."""

HOSTILE_TEXTS = (
    "", " ", "0", "-1", "1e999", "nan", "inf", "9" * 400, "1e-400", "%", "٣", "½", "\0", "\x1b[2J",
    "\ud800", "x", ":", "/", "@", "?", "#", "=", "&", ";", "[", "::1", "]", "a" * 300, "..", "~",
    "$HOME", "`id`", "\n", "\\", "'", '"', "--", "postgresql://", "sqlite:///", "mysql://", "file:",
    "user:secret@", "host", ":99999", ":-1", ":x", "/db", "?password=p", "J", "Wh", "kg/kWh", "EUR",
    "GiB", "min", "d", "3x96", "xx", "steps", "60%", "/", ":memory:", "nvml:0", "+", "command:",
    "http://[", "e.py:f", "cnn5", "resnet18", ":32", ",,", "1,2", "simulated:", "1..2", "2**9",
)  # fmt: skip
"""Parts of texts that a user, a settings file or a URL may contain."""

_LONGEST_MESSAGE = 2000


def damage_value(value: Any, rng: random.Random) -> Any:
    """Return a copy of a JSON value in which a few places are replaced, removed or added."""
    damaged = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        damaged = _damage_place(damaged, rng)
    return damaged


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return content in which bytes are changed, removed, inserted, repeated or cut off."""
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        start = rng.randrange(len(damaged) + 1)
        stop = min(len(damaged), start + rng.choice((1, 1, 4, 64)))
        noise = rng.randbytes(rng.choice((1, 1, 3)))
        how = rng.randrange(5)
        if how == 0:
            damaged[start : start + 1] = noise[:1]
        elif how == 1:
            del damaged[start:stop]
        elif how == 2:
            damaged[start:start] = noise
        elif how == 3:
            damaged[start:start] = damaged[start:stop]
        elif rng.random() < 0.2:
            del damaged[start:]
    return bytes(damaged)


def make_text(rng: random.Random, examples: Sequence[str] = ()) -> str:
    """Return a text made of hostile parts, or an example with such a part in it."""
    parts = rng.choices(HOSTILE_TEXTS, k=rng.choice((1, 1, 2, 3, 5)))
    if not examples or rng.random() < 0.3:
        return "".join(parts)
    example = rng.choice(examples)
    start = rng.randrange(len(example) + 1)
    return example[:start] + parts[0] + example[start + rng.choice((0, 0, 1, 3)) :]


def seal(what: str, version: int, content: Any) -> bytes:
    """Return a file with the checksum of its content, whatever that is."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    head = {"format": f"joulecast-{what}", "version": version, "sha256": checksum}
    return json.dumps({**head, what: content}).encode()


def pack(rows: Any) -> str:
    """Return rows as profile files pack them."""
    return base64.b64encode(zlib.compress(json.dumps(rows).encode(), 1)).decode()


def find_defect(read: Callable[[], Any]) -> Exception | None:
    """Return what a reader did wrong with outside data; None if it returned or refused cleanly.

    It must raise one of our errors, whose message is one line that can be printed.
    """
    try:
        read()
    except JoulecastError as error:
        text = str(error)
        if not text or "\n" in text.strip() or len(text) > _LONGEST_MESSAGE:
            return error
    except Exception as error:
        return error
    return None


def _damage_place(value: Any, rng: random.Random) -> Any:
    holder, key = _find_place(value, rng)
    if holder is None:
        return copy.deepcopy(rng.choice(HOSTILE_VALUES))
    new = copy.deepcopy(rng.choice(HOSTILE_VALUES))
    how = rng.random()
    if how < 0.7:
        holder[key] = _change_value(holder[key], rng) if how < 0.2 else new
    elif how < 0.85:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(key, new)
    else:
        holder[rng.choice(("", "x", "name", "version", key + " "))] = new
    return value


def _find_place(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """Return a random container within a value and a key of it; None and None in a plain value."""
    holder, key, inner = None, None, value
    while isinstance(inner, (dict, list)) and inner and (holder is None or rng.random() < 0.85):
        holder = inner
        key = rng.choice(sorted(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))
        inner = holder[key]
    return holder, key


def _change_value(value: Any, rng: random.Random) -> Any:
    """Return a similar value: another number, another text, a list of another length."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return value * rng.choice((-1, 0, 2, 10**9)) + rng.choice((0, 1))
    if isinstance(value, str):
        return value[: rng.randrange(len(value) + 1)]
    if isinstance(value, list):
        return value[: len(value) // 2] if rng.random() < 0.5 else value + value
    return {}
