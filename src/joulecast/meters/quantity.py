"""Find joules or watts in text: ``123.4 J``, ``55 W``, ``0.2 mWh``, ``1,234.5 Joules``.

The last number with a unit counts, because programs print banners first and results last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from joulecast.errors import InputError
from joulecast.units import parse_energy

_QUANTITY = re.compile(
    r"(?<![\w.,])"  # not from the middle of a word or a number
    r"(?P<sign>[-+]?)"
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)"
    r"\s*(?P<prefix>[nuµμmkKMG]?)(?P<unit>Wh|J|W|[jJ]oules?|[wW]atts?)(?!\w)"
)
_SHOWN = 60


@dataclass(frozen=True)
class Quantity:
    """A number with its unit, ``J`` or ``W``."""

    value: float
    unit: str


def read_quantity(text: str) -> Quantity:
    """Return the last number of joules or watts in a text.

    Raises:
        InputError: The text contains neither, or a number that no float can hold.
    """
    matches = list(_QUANTITY.finditer(text))
    if not matches:
        shown = " ".join(text.split())[-_SHOWN:]
        raise InputError(f"no joules or watts in {shown!r}: print a number with J, Wh or W")
    found = matches[-1].groupdict()
    is_power = found["unit"][0] in "Ww" and found["unit"] != "Wh"
    # A watt is a joule per second, so its prefixes scale the same way.
    energy_unit = "Wh" if found["unit"] == "Wh" else "J"
    try:
        size = parse_energy(found["number"].replace(",", "") + found["prefix"] + energy_unit)
    except InputError as error:
        raise InputError(f"{matches[-1][0]!r} is too large: print a number like 55 W") from error
    return Quantity(-size if found["sign"] == "-" else size, "W" if is_power else "J")
