"""Parse, convert and format quantities: energy, power, durations, bytes, shares, shapes and money.

Values are plain floats in SI units. ``parse_*`` reads what a user types; ``format_*`` writes three
significant digits. Carbon intensities are rounded yearly averages, not those of a given hour, so
show what is computed from them with "about".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulecast.system.errors import InputError

JOULES_PER_WH = 3600.0
WH_PER_KWH = 1000.0
JOULES_PER_KWH = JOULES_PER_WH * WH_PER_KWH
GRAMS_PER_KG = 1000.0

# Yearly averages of 2023 in grams of CO2e per kWh, rounded.
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
# Other spellings: the Greek letter mu and u for the micro sign, K for k.
_PREFIXES |= {"μ": 1e-6, "u": 1e-6, "K": 1e3}
_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
_ENERGY = re.compile(_NUMBER + r"\s*([nuµμmkKMGT]?)([jJ]|[wW][hH])")
_GRID = re.compile(_NUMBER + r"\s*(?:(k?)g\s*(?:CO2e?)?\s*/\s*kWh)?", re.IGNORECASE)
_SHARE = re.compile(_NUMBER + r"\s*(%?)")
_BYTES = re.compile(_NUMBER + r"\s*([kKMGT]?)(i?)B")
_DURATION_PART = re.compile(_NUMBER + r"\s*(ms|s|min|h|d)\s*")
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CURRENCY = r"([A-Za-z]{3}|[€$£¥₹])?"
# The currency may come before or after the number.
_MONEY = re.compile(_CURRENCY + r"\s*" + _NUMBER + r"\s*(?(1)|" + _CURRENCY + ")")
_PER_KWH = re.compile(r"\s*/\s*kWh$", re.IGNORECASE)
_POWER = re.compile(_NUMBER + r"\s*([umµμkKM]?)[wW]")


@dataclass(frozen=True)
class Price:
    """The price of a kilowatt-hour, in the currency as the user wrote it (or empty)."""

    amount_per_kwh: float
    currency: str = ""

    def __str__(self) -> str:
        return f"{self.amount_per_kwh!r} {self.currency}".rstrip() + "/kWh"


# ---------------------------------------------------------------------------------------------
# Convert


def joules_to_wh(energy_j: float) -> float:
    """Convert joules to watt-hours."""
    return energy_j / JOULES_PER_WH


def joules_to_kwh(energy_j: float) -> float:
    """Convert joules to kilowatt-hours."""
    return energy_j / JOULES_PER_KWH


def battery_share(energy_j: float, battery_j: float) -> float:
    """Return energy as a share of a full battery; above 1 the battery does not suffice."""
    if not battery_j > 0:
        raise InputError(
            f"the battery's capacity is {format_energy(battery_j)}: give more than 0, like 15Wh"
        )
    return energy_j / battery_j


def co2e_g(energy_j: float, grid_g_per_kwh: float) -> float:
    """Return the grams of CO2e that energy from a grid emits."""
    return joules_to_kwh(energy_j) * grid_g_per_kwh


def price_energy(energy_j: float, price_per_kwh: float) -> float:
    """Return what energy costs, in the currency of the price."""
    return joules_to_kwh(energy_j) * price_per_kwh


# ---------------------------------------------------------------------------------------------
# Parse what a user types


def parse_energy(text: str) -> float:
    """Return the joules of a text like ``15Wh``, ``300 mWh``, ``2kWh`` or ``5J``."""
    hint = " (mAh x volts / 1000 = Wh)" if "ah" in text.lower() else ""
    number, prefix, unit = _match(_ENERGY, text, f"an energy: give one like 15Wh or 5J{hint}")
    joules = JOULES_PER_WH if unit.lower() == "wh" else 1.0
    return _check_finite(float(number) * _PREFIXES[prefix] * joules, text, "15Wh")


def parse_grid(text: str) -> float:
    """Return g CO2e per kWh of a text like ``400``, ``0.4kg/kWh`` or the name of a grid."""
    name = text.strip().lower()
    if name in GRIDS:
        return GRIDS[name]
    wanted = f"a grid: give g CO2e per kWh, like 400, or one of {', '.join(GRIDS)}"
    number, kilo = _match(_GRID, text, wanted)
    return _check_finite(float(number) * (GRAMS_PER_KG if kilo else 1.0), text, "400")


def parse_price(text: str) -> Price:
    """Return the price per kWh of a text like ``0.30``, ``0.30EUR`` or ``€0.30/kWh``."""
    try:
        return Price(*parse_money(_PER_KWH.sub("", text.strip())))
    except InputError:
        raise InputError(
            f"{text!r} is not a price per kWh: give one like 0.30, 0.30EUR or €0.30/kWh"
        ) from None


def parse_money(text: str) -> tuple[float, str]:
    """Return amount and currency of a text like ``599EUR``, ``€599`` or ``599``."""
    before, number, after = _match(_MONEY, text, "a price: give one like 599EUR, €599 or 599")
    return _check_finite(float(number), text, "599EUR"), (before or after or "").upper()


def parse_power(text: str) -> float:
    """Return the watts of a text like ``15W``, ``700 mW`` or ``1.2kW``."""
    number, prefix = _match(_POWER, text, "a power: give a number and a unit, like 15W")
    return _check_finite(float(number) * _PREFIXES[prefix], text, "15W")


def parse_share(text: str, most: float = 1.0) -> float:
    """Return the share, from 0 to ``most``, of a text like ``60%`` or ``0.6``."""
    match = _SHARE.fullmatch(text.strip())
    share = float(match.group(1)) / (100 if match.group(2) else 1) if match else -1.0
    if not 0 <= share <= most or math.isinf(share):
        bounds = "from 0%" + ("" if math.isinf(most) else f" to {100 * most:g}%")
        raise InputError(f"{text!r} is not a share: give one {bounds}, like 60% or 0.6")
    return share


def parse_duration(text: str) -> float:
    """Return the seconds of a text like ``45s``, ``90min``, ``2h``, ``1h30min`` or ``2d``."""
    rest, total_s = text.strip(), 0.0
    match = _DURATION_PART.match(rest)
    while match:
        total_s += float(match.group(1)) * _SECONDS[match.group(2)]
        rest = rest[match.end() :]
        match = _DURATION_PART.match(rest)
    if rest or not text.strip():
        raise InputError(f"{text!r} is not a duration: give one like 45s, 90min, 1h30min or 2d")
    return _check_finite(total_s, text, "2h")


def parse_bytes(text: str) -> float:
    """Return the bytes of a text like ``8GiB``, ``500MB`` or ``1024B``."""
    wanted = "a size in bytes: give one like 8GiB or 500MB"
    number, prefix, binary = _match(_BYTES, text, wanted)
    power = ("", "k", "M", "G", "T").index(prefix.replace("K", "k"))
    return _check_finite(float(number) * (1024.0 if binary else 1000.0) ** power, text, "8GiB")


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the shape of a text like ``3x96x96``."""
    try:
        shape = tuple(int(size) for size in text.lower().split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise InputError(f"{text!r} is not a shape: give the sizes of one sample, like 3x96x96")
    return shape


def _match(pattern: re.Pattern[str], text: str, wanted: str) -> tuple[str, ...]:
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not {wanted}")
    return match.groups(default="")


def _check_finite(value: float, text: str, example: str) -> float:
    if not math.isfinite(value):
        raise InputError(f"{text!r} is too large: give a number like {example}")
    return value


# ---------------------------------------------------------------------------------------------
# Format for reading


def format_energy(energy_j: float) -> str:
    """Return text like ``1.23 kJ``, from nanojoules to gigajoules."""
    return _format_si(energy_j, "J", ("n", "µ", "m", "", "k", "M", "G"))


def format_kwh(energy_j: float) -> str:
    """Return text like ``0.0000123 kWh``."""
    return f"{_three_digits(joules_to_kwh(energy_j))} kWh"


def format_wh(energy_j: float) -> str:
    """Return text like ``1.23 mWh``, from nanowatt-hours to gigawatt-hours."""
    return _format_si(joules_to_wh(energy_j), "Wh", ("n", "µ", "m", "", "k", "M", "G"))


def format_power(power_w: float) -> str:
    """Return text like ``81.0 W``."""
    return _format_si(power_w, "W", ("m", "", "k", "M"))


def format_mass(mass_g: float) -> str:
    """Return text like ``1.23 kg``, from micrograms to tonnes."""
    if abs(mass_g) >= 999.5 * GRAMS_PER_KG:
        return f"{_three_digits(mass_g / GRAMS_PER_KG / 1000)} t"
    return _format_si(mass_g, "g", ("µ", "m", "", "k"))


def format_count(count: float, unit: str = "") -> str:
    """Return text like ``1.82 GFLOP``; whole numbers below 1000 have no decimals."""
    if abs(count) < 1000 and float(count).is_integer():
        return f"{int(count)} {unit}".rstrip()
    return _format_si(count, unit, ("", "k", "M", "G", "T")).rstrip()


def format_bytes(size_bytes: float) -> str:
    """Return text like ``1.50 GiB``, in powers of 1024."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size_bytes /= 1024
        if abs(size_bytes) < 1023.5 or unit == "TiB":
            break
    return f"{_three_digits(size_bytes)} {unit}"


def format_duration(duration_s: float) -> str:
    """Return text like ``1.23 ms``, ``45.0 s``, ``2 min 5 s``, ``3 h 20 min`` or ``2 d 4 h``."""
    if not math.isfinite(duration_s) or abs(duration_s) < 59.95:
        return _format_si(duration_s, "s", ("n", "µ", "m", ""))
    sign = "-" if duration_s < 0 else ""
    size_s = abs(duration_s)
    # Compare rounded values, so that 59.99 min becomes 1 h 0 min.
    if round(size_s) < 3600:
        large, small = "min", "s"
    elif round(size_s / 60) < 24 * 60:
        large, small = "h", "min"
    else:
        large, small = "d", "h"
    large_s, small_s = round(_SECONDS[large]), round(_SECONDS[small])
    whole, rest = divmod(round(size_s / small_s), large_s // small_s)
    return f"{sign}{whole} {large} {rest} {small}"


def format_interval(ends: Sequence[float], form: Callable[[float], str]) -> str:
    """Return ``404–632 mJ``; a unit that both ends share is written once."""
    low, high = map(form, ends)
    number, _, unit = low.partition(" ")
    if unit and unit.isalpha() and high.endswith(f" {unit}"):
        return f"{number}–{high}"
    return f"{low} – {high}"


def format_share(share: float) -> str:
    """Return text like ``12.3 %``."""
    return f"{_three_digits(100 * share)} %"


def format_shape(shape: tuple[int, ...]) -> str:
    """Return text like ``3x96x96``; a dash for the shape of a scalar."""
    return "x".join(map(str, shape)) or "-"


def format_money(amount: float, currency: str = "") -> str:
    """Return text like ``12.34 EUR``; amounts below 1 have three significant digits."""
    digits = f"{amount:.2f}" if abs(amount) >= 1 else _three_digits(amount)
    return f"{digits} {currency}".rstrip()


def _format_si(value: float, unit: str, prefixes: tuple[str, ...]) -> str:
    """Choose the prefix that leaves one to three digits before the point, if there is one."""
    if value == 0 or not math.isfinite(value):
        return f"{_three_digits(value)} {unit}"
    chosen = prefixes[0]
    for prefix in prefixes[1:]:
        if abs(value) >= 0.9995 * _PREFIXES[prefix]:
            chosen = prefix
    return f"{_three_digits(value / _PREFIXES[chosen])} {chosen}{unit}"


def _three_digits(value: float) -> str:
    """Return three significant digits without an exponent, and all digits before the point."""
    if value == 0 or not math.isfinite(value):
        return str(value) if value else "0"
    rounded = float(f"{value:.2e}") if abs(value) < 1000 else value
    places = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, places)}f}"
