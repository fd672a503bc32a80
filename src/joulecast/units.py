"""Joules in words: watt-hours, shares of a battery, CO2e and money; the only conversion constants.

Takes and gives plain floats in SI units (``parse_*`` reads what a person types, ``format_*`` writes
what a person reads, to three significant digits). Grids are round yearly averages and not what a
socket delivers at a given hour, so whatever rests on them is to be shown with "about".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from joulecast.errors import InputError

JOULES_PER_WH = 3600.0
WH_PER_KWH = 1000.0
JOULES_PER_KWH = JOULES_PER_WH * WH_PER_KWH
GRAMS_PER_KG = 1000.0

# About: yearly means of 2023 in grams of CO2e per kWh, rounded.
GRIDS = {
    "world": 480.0,
    "cn": 580.0,
    "de": 380.0,
    "eu": 240.0,
    "fr": 56.0,
    "in": 710.0,
    "uk": 240.0,
    "us": 370.0,
}
GRID_SOURCE = "Ember, yearly averages of 2023, rounded; eu, uk and us were not checked against it"

_PREFIXES = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
# Ways of typing a prefix: the micro sign, the Greek letter, u; K is meant as k.
_PREFIX_WORDS = {"μ": "µ", "u": "µ", "K": "k"}
_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
_ENERGY = re.compile(_NUMBER + r"\s*([nuµμmkKMGT]?)([jJ]|[wW][hH])")
_GRID = re.compile(_NUMBER + r"\s*(?:(k?)g\s*(?:CO2e?)?\s*/\s*kWh)?", re.IGNORECASE)
_SHARE = re.compile(_NUMBER + r"\s*(%?)")
_BYTES = re.compile(_NUMBER + r"\s*([kKMGT]?)(i?)B")
_DURATION_PART = re.compile(_NUMBER + r"\s*(ms|s|min|h|d)\s*")
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CURRENCY = r"([A-Za-z]{3}|[€$£¥₹])?"
_PRICE = re.compile(_CURRENCY + r"\s*" + _NUMBER + r"\s*" + _CURRENCY + r"\s*(?:/\s*[kK][wW][hH])?")


@dataclass(frozen=True)
class Price:
    """What a kilowatt-hour costs; the currency is kept as it was written, empty where none was."""

    amount_per_kwh: float
    currency: str = ""

    def __str__(self) -> str:
        return f"{self.amount_per_kwh!r} {self.currency}".rstrip() + "/kWh"


# ---------------------------------------------------------------------------------------------
# Converting


def joules_to_kwh(energy_j: float) -> float:
    """Kilowatt-hours of some joules."""
    return energy_j / JOULES_PER_KWH


def battery_share(energy_j: float, battery_j: float) -> float:
    """The share of a full battery that some joules take; above 1 it does not suffice."""
    if not battery_j > 0:
        raise InputError(f"a battery of {format_energy(battery_j)}: give its charge, like 15Wh")
    return energy_j / battery_j


def co2e_g(energy_j: float, grid_g_per_kwh: float) -> float:
    """Grams of CO2e of some joules on a grid."""
    return joules_to_kwh(energy_j) * grid_g_per_kwh


def count_steps(epochs: int, samples: int, batch: int) -> int:
    """Steps of so many passes over samples; the last step of a pass may be a smaller one."""
    return epochs * math.ceil(samples / batch)


def cost(energy_j: float, price_per_kwh: float) -> float:
    """What some joules cost, in the currency of the price."""
    return joules_to_kwh(energy_j) * price_per_kwh


# ---------------------------------------------------------------------------------------------
# Reading what a person types


def parse_energy(text: str) -> float:
    """Joules of a text like ``15Wh``, ``300 mWh``, ``2kWh`` or ``5J``."""
    match = _ENERGY.fullmatch(text.strip())
    if match is None:
        hint = "; of mAh times volts / 1000 gives Wh" if "ah" in text.lower() else ""
        raise InputError(f"{text!r} is no energy: give a number and a unit, like 15Wh or 5J{hint}")
    number, prefix, unit = match.groups()
    scale = _PREFIXES[_PREFIX_WORDS.get(prefix, prefix)]
    joules = JOULES_PER_WH if unit.lower() == "wh" else 1.0
    return _finite(float(number) * scale * joules, text, "15Wh")


def parse_grid(text: str) -> float:
    """Grams of CO2e per kWh of a number (``400``, ``400g/kWh``, ``0.4kg/kWh``) or a named grid."""
    word = text.strip().lower()
    if word in GRIDS:
        return GRIDS[word]
    match = _GRID.fullmatch(word)
    if match is None:
        known = ", ".join(GRIDS)
        raise InputError(f"{text!r} is no grid: give g CO2e per kWh, like 400, or one of {known}")
    number, kilo = match.groups()
    return _finite(float(number) * (GRAMS_PER_KG if kilo else 1.0), text, "400")


def parse_price(text: str) -> Price:
    """A price per kWh of a text like ``0.30``, ``0.30EUR`` or ``€0.30/kWh``."""
    match = _PRICE.fullmatch(text.strip())
    before, number, after = match.groups() if match else (None, "", None)
    if match is None or (before and after):
        raise InputError(f"{text!r} is no price per kWh: give one like 0.30, 0.30EUR or €0.30/kWh")
    return Price(_finite(float(number), text, "0.30EUR"), (before or after or "").upper())


def parse_share(text: str, most: float = 1.0) -> float:
    """A share from 0 to ``most`` of a text like ``60%`` or ``0.6``."""
    match = _SHARE.fullmatch(text.strip())
    share = float(match.group(1)) / (100 if match.group(2) else 1) if match else -1.0
    if not 0 <= share <= most or math.isinf(share):
        ends = "from 0%" + ("" if math.isinf(most) else f" to {100 * most:g}%")
        raise InputError(f"{text!r} is no share: give one {ends}, like 60% or 0.6")
    return share


def parse_duration(text: str) -> float:
    """Seconds of a text like ``45s``, ``90min``, ``2h``, ``1h30min`` or ``2d``."""
    words, at, total_s = text.strip(), 0, 0.0
    while at < len(words):
        match = _DURATION_PART.match(words, at)
        if match is None:
            break
        total_s += float(match.group(1)) * _SECONDS[match.group(2)]
        at = match.end()
    if not words or at < len(words):
        raise InputError(f"{text!r} is no duration: give one like 45s, 90min, 1h30min or 2d")
    return _finite(total_s, text, "2h")


def parse_bytes(text: str) -> float:
    """Bytes of a text like ``8GiB``, ``500MB`` or ``1024B``."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is no size: give one like 8GiB or 500MB")
    number, prefix, binary = match.groups()
    power = ("", "k", "M", "G", "T").index(_PREFIX_WORDS.get(prefix, prefix))
    return _finite(float(number) * (1024.0 if binary else 1000.0) ** power, text, "8GiB")


def _finite(value: float, text: str, example: str) -> float:
    if not math.isfinite(value):
        raise InputError(f"{text!r} is too large: give a number like {example}")
    return value


# ---------------------------------------------------------------------------------------------
# Writing what a person reads


def format_energy(energy_j: float) -> str:
    """``1.23 kJ``: from nanojoules to gigajoules."""
    return _format_si(energy_j, "J", ("n", "µ", "m", "", "k", "M", "G"))


def format_kwh(energy_j: float) -> str:
    """``0.0000123 kWh``: what a bill counts."""
    return f"{_three_digits(joules_to_kwh(energy_j))} kWh"


def format_power(power_w: float) -> str:
    """``81.0 W``."""
    return _format_si(power_w, "W", ("m", "", "k", "M"))


def format_mass(mass_g: float) -> str:
    """``1.23 kg``: from micrograms to tonnes."""
    if abs(mass_g) >= 999.5 * GRAMS_PER_KG:
        return f"{_three_digits(mass_g / GRAMS_PER_KG / 1000)} t"
    return _format_si(mass_g, "g", ("µ", "m", "", "k"))


def format_count(count: float, unit: str = "") -> str:
    """``1.82 GFLOP``: a count with an SI prefix; whole numbers below 1000 stay as they are."""
    if abs(count) < 1000 and float(count).is_integer():
        return f"{int(count)} {unit}".rstrip()
    return _format_si(count, unit, ("", "k", "M", "G", "T")).rstrip()


def format_bytes(size_bytes: float) -> str:
    """``1.50 GiB``: in powers of 1024, as memory is sold."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size_bytes /= 1024
        if abs(size_bytes) < 1023.5 or unit == "TiB":
            break
    return f"{_three_digits(size_bytes)} {unit}"


def format_duration(duration_s: float) -> str:
    """``1.23 ms``, ``45.0 s``, ``2 min 5 s``, ``3 h 20 min``, ``2 d 4 h``."""
    if not math.isfinite(duration_s) or abs(duration_s) < 59.95:
        return _format_si(duration_s, "s", ("n", "µ", "m", ""))
    sign = "-" if duration_s < 0 else ""
    size_s = abs(duration_s)
    # Compared as it will be rounded, so that 59.99 min becomes 1 h 0 min.
    if round(size_s) < 3600:
        words, large_s, small_s = ("min", "s"), 60, 1
    elif round(size_s / 60) < 24 * 60:
        words, large_s, small_s = ("h", "min"), 3600, 60
    else:
        words, large_s, small_s = ("d", "h"), 86400, 3600
    whole, rest = divmod(round(size_s / small_s), large_s // small_s)
    return f"{sign}{whole} {words[0]} {rest} {words[1]}"


def format_share(share: float) -> str:
    """``12.3 %``."""
    return f"{_three_digits(100 * share)} %"


def format_money(amount: float, currency: str = "") -> str:
    """``0.0123 EUR``: cents from one unit on, three significant digits below."""
    digits = f"{amount:.2f}" if abs(amount) >= 1 else _three_digits(amount)
    return f"{digits} {currency}".rstrip()


def _format_si(value: float, unit: str, prefixes: tuple[str, ...]) -> str:
    """The prefix that leaves one to three digits before the point, as far as there is one."""
    if value == 0 or not math.isfinite(value):
        return f"{_three_digits(value)} {unit}"
    chosen = prefixes[0]
    for prefix in prefixes[1:]:
        if abs(value) >= 0.9995 * _PREFIXES[prefix]:
            chosen = prefix
    return f"{_three_digits(value / _PREFIXES[chosen])} {chosen}{unit}"


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent; never fewer than all whole digits."""
    if value == 0 or not math.isfinite(value):
        return str(value) if value else "0"
    rounded = float(f"{value:.2e}") if abs(value) < 1000 else value
    places = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, places)}f}"
