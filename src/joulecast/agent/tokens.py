"""Read the token that an agent and its clients share.

It comes from a file or from the environment, never from the command line: every user of a machine
can read the arguments of its processes.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from joulecast.errors import InputError
from joulecast.input_files import read_limited

TOKEN = "JOULECAST_TOKEN"
TOKEN_FILE = "JOULECAST_TOKEN_FILE"
_MOST_BYTES = 4096
# What an HTTP header can carry, and long enough not to be guessed.
_FORM = re.compile(r"[!-~]{16,1024}")
_MAKE = 'make one with python3 -c "import secrets; print(secrets.token_urlsafe())"'


def read_token(file: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """Return the token in a file, else that of the environment; empty where there is none.

    Args:
        file: Path of a file that contains only the token; by default JOULECAST_TOKEN_FILE.
        environ: Contains JOULECAST_TOKEN or JOULECAST_TOKEN_FILE.

    Raises:
        InputError: The file cannot be read, others can read it, or what it contains is no token.
    """
    file = file or environ.get(TOKEN_FILE, "")
    if not file:
        token = environ.get(TOKEN, "").strip()
        return check_token(token, TOKEN) if token else ""
    path = Path(file)
    content = read_limited(path, _MOST_BYTES).decode("ascii", "replace").strip()
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"other users can read the token in {file}: run chmod 600 {file}")
    return check_token(content, file)


def check_token(token: str, place: str) -> str:
    """Return a token, if it is one; the message never contains it.

    Raises:
        InputError: It is too short, or contains spaces or characters other than ASCII.
    """
    if not _FORM.fullmatch(token):
        raise InputError(
            f"{place} holds no token, which has 16 to 1024 characters without spaces: {_MAKE}"
        )
    return token


def are_equal_secrets(one: str, other: str) -> bool:
    """Compare two texts in a time that does not tell how much of them is equal."""
    left, right = (text.encode("utf-8", "surrogateescape") for text in (one, other))
    return hmac.compare_digest(left, right)
