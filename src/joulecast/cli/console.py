"""A console of rich that prints text literally, whatever is in it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from joulecast.printable import make_printable
from joulecast.redaction import redact_url


class LiteralConsole(Console):
    """A console that escapes control characters and hides passwords; styles are its own."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text to print; only line breaks at its ends are line breaks."""
        inner = text.strip("\n")
        start, _, end = text.partition(inner) if inner else (text, "", "")
        return super().render_str(start + make_printable(redact_url(inner)) + end, **options)
