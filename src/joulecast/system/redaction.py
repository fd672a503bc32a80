"""Remove passwords from texts that people will see.

    postgresql://user:secret@host/db            ──▶  postgresql://user:***@host/db
    postgresql://host/db?password=secret        ──▶  postgresql://host/db?password=***
    host=lab password='my secret' dbname=db     ──▶  host=lab password=*** dbname=db

A text may be a URL, or a message with URLs in it. Where it is unclear where a password ends, rather
too much is removed than too little.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

MASK = "***"

# A password may contain every character that some driver accepts: "@", "/", "?", even spaces. It
# reaches up to the last "@" before a space; a second alternative looks behind spaces, unless a port
# or a space follows the colon. Limits keep hostile texts from taking quadratic time.
_CREDENTIALS = re.compile(
    r"(?P<start>(?<![\w+.-])[\w+.-]*:/+[^\s:/?#]{0,999}:)"
    r"(?:\S{0,4999}|(?!\s|\d+\W|\d+$)[^@]{0,4999})@",
    re.IGNORECASE,
)
_KEY = re.compile(r"(?<![\w%.+-])(?P<key>[\w%.+-]+)\s?=\s?")
_VALUE = re.compile(
    r"""'(?:[^'\\]|\\.){0,4999}'|"(?:[^"\\]|\\.){0,4999}"|[^&\s]+""",
)
_SECRET_KEYS = re.compile(
    r"(?:password|passwd|passphrase|pwd|pass|secret|token|api[_-]?key|access[_-]?key)$",
    re.IGNORECASE,
)


def redact_url(text: str) -> str:
    """Return a text without the passwords of the URLs and connection strings in it."""
    lines = []
    for line in text.split("\n"):
        # Behind the last "@" there is nothing to find, and looking for it would take long.
        end = line.rfind("@") + 1
        lines.append(_CREDENTIALS.sub(rf"\g<start>{MASK}@", line[:end]) + line[end:])
    text = "\n".join(lines)
    # The values of secret keys; values of others may be whole URLs.
    shown, end, position = [], 0, 0
    while found := _KEY.search(text, position):
        position = found.end()
        value = _VALUE.match(text, position)
        if value is None or not _SECRET_KEYS.search(unquote_plus(found["key"])):
            continue
        shown += [text[end:position], MASK]
        # Closing quotes and brackets belong to the message around a URL.
        is_quoted = value[0].startswith(("'", '"'))
        end = position = position + len(value[0] if is_quoted else value[0].rstrip("'\")]},;:."))
    return "".join(shown) + text[end:]
