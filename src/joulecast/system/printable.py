"""Show control characters as text, so that a name from a file cannot control a terminal.

    make_printable("\\x1b[2J")        ──▶  the six characters \\x1b[2J

Names of devices, nets and layers come from files that others wrote. Written to a terminal as they
are, they could clear it, set its title or the clipboard, or turn around the text beside them.
"""

from __future__ import annotations


def make_printable(text: str, *, keep_newlines: bool = False) -> str:
    """Return a text in which everything that is not printable is escaped as Python does.

    A text that is already escaped stays unchanged.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or (keep_newlines and one == "\n") else ascii(one)[1:-1]
        for one in text
    )
