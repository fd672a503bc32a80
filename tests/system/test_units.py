"""Units: formatted quantities parse back, and conversions are linear."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.system import units
from joulecast.system.errors import InputError

positive = st.floats(1e-9, 1e12)

# -- parse --------------------------------------------------------------------------------------

PARSED = {
    "energy": {"15Wh": 54_000, "5J": 5, "2 KWh": 7.2e6, "300mWh": 1080, "1 MWh": 3.6e9}
    | {"3 µJ": 3e-6, "3uj": 3e-6, " .5 Wh ": 1800, "1e3J": 1000},
    "duration": {"45s": 45, "90min": 5400, "2h": 7200, "1h30min": 5400, "2 d": 172800, "5ms": 5e-3},
    "bytes": {"8GiB": 8 * 2**30, "500MB": 5e8, "1024B": 1024, "2 kB": 2000},
    "share": {"60%": 0.6, "0.6": 0.6, "0": 0, "100 %": 1},
    "power": {"15W": 15.0, "700 mW": 0.7, "1.2kW": 1200.0, "1.5 w": 1.5},
    "money": {"599EUR": (599.0, "EUR"), "€599": (599.0, "€"), "599": (599.0, "")},
}
# Texts that are refused, and the example that the message gives.
REFUSED = {
    "energy": ("|15|Wh|-5J|5 Ws|nanJ|1e999J|15Wh/day|4000mAh", "like 15Wh"),
    "grid": ("|mars|-1|400 lb/MWh|nan", "400, or one of world"),
    "price": ("|EUR|free|-0.3|0,30|€0.30EUR|0.30/MWh|inf", "0.30EUR"),
    "duration": ("|2|2 weeks|-2h", "90min"),
    "bytes": ("|8|8 bytes", "8GiB"),
    "share": ("|120%|half", "60%"),
    "shape": ("|x|3x|3x0|-3x4|3,96,96|3x9.5", "3x96x96"),
    "power": ("|15|W|-3W|15Wh|nanW|1e999W", "15W"),
    "money": ("|EUR|cheap|-5EUR|€5EUR|599EUR/kWh", "599EUR"),
}


@pytest.mark.parametrize("kind", PARSED)
def test_texts_are_parsed(kind):
    parse = getattr(units, f"parse_{kind}")
    for text, value in PARSED[kind].items():
        assert parse(text) == (value if kind == "money" else pytest.approx(value, rel=1e-12))


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind in REFUSED for text in REFUSED[kind][0].split("|")]
)
def test_other_text_is_refused_in_one_line_with_an_example(kind, text):
    with pytest.raises(InputError) as caught:
        getattr(units, f"parse_{kind}")(text)
    message = str(caught.value)
    assert repr(text) in message and REFUSED[kind][1] in message and "\n" not in message


def test_milliampere_hours_are_explained():
    with pytest.raises(InputError, match="volts"):
        units.parse_energy("4000mAh")


@given(st.floats(0, 5000))
def test_parse_grid_reads_numbers_in_g_and_kg_per_kwh(rate):
    for text in (f"{rate!r}", f"{rate!r}g/kWh", f"{rate!r} gCO2e/kWh", f"{rate!r} G CO2/KWH"):
        assert units.parse_grid(text) == rate
    assert units.parse_grid(f"{rate!r} kg/kWh") == pytest.approx(1000 * rate)


@pytest.mark.parametrize("name", units.GRIDS)
def test_named_grids_ignore_case(name):
    assert units.parse_grid(name.upper()) == units.GRIDS[name]
    assert 10 < units.GRIDS[name] < 1000


@given(st.floats(0, 1e6), st.sampled_from(["", "EUR", "USD", "€", "$", "£"]))
def test_price_round_trip(amount, currency):
    price = units.Price(amount, currency)
    for text in (str(price), f"{currency}{amount!r}", f" {amount!r}{currency} / kWh "):
        assert units.parse_price(text) == price


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=4).map(tuple))
def test_shape_round_trip(shape):
    assert units.parse_shape(units.format_shape(shape)) == shape
    assert units.parse_shape(units.format_shape(shape).upper()) == shape


# -- convert ------------------------------------------------------------------------------------


@given(positive, st.floats(1, 1e9), st.floats(0.001, 1000))
def test_conversions_are_linear(energy_j, battery_j, rate):
    share = units.battery_share(energy_j, battery_j)
    assert share * battery_j == pytest.approx(energy_j)
    kwh = units.joules_to_kwh(energy_j)
    assert units.co2e_g(energy_j, rate) == pytest.approx(kwh * rate)
    assert units.price_energy(energy_j, rate) == pytest.approx(kwh * rate)
    assert units.joules_to_kwh(units.parse_energy("1kWh")) == 1.0


@pytest.mark.parametrize("battery_j", [0.0, -1.0, math.nan])
def test_battery_without_capacity_is_refused(battery_j):
    with pytest.raises(InputError, match="15Wh"):
        units.battery_share(1.0, battery_j)


# -- format -------------------------------------------------------------------------------------


@given(positive, positive)
def test_formatted_energy_keeps_three_digits_and_the_order(one, other):
    low, high = (units.parse_energy(units.format_energy(e)) for e in sorted((one, other)))
    assert low <= high
    assert math.isclose(low, min(one, other), rel_tol=0.006)
    number = units.format_energy(min(one, 9.99e11)).split()[0]
    assert 1 <= float(number) < 1000 and len(number.replace(".", "")) == 3


@given(st.floats(1e-9, 1e9))
def test_formatted_duration_is_right_to_the_smaller_unit(duration_s):
    text = units.format_duration(duration_s)
    scales = {"d": 86400, "h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    words = text.split()
    read_s = sum(float(n) * scales[unit] for n, unit in zip(words[::2], words[1::2], strict=True))
    assert math.isclose(read_s, duration_s, rel_tol=0.025)
    assert not re.search(r"(?<![\d.])(60 (s|min)|24 h)", text)
    if duration_s >= 0.001:
        assert units.parse_duration(text) == pytest.approx(duration_s, rel=0.05)


@given(st.floats(1, 1e15))
def test_bytes_and_counts_are_right_to_three_digits(size):
    number, unit = units.format_bytes(size).split()
    power = ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert math.isclose(float(number) * 1024**power, size, rel_tol=0.006, abs_tol=0.5)
    number, *prefix = units.format_count(size).split()
    power = ["", "k", "M", "G", "T"].index("".join(prefix))
    assert math.isclose(float(number) * 1000**power, size, rel_tol=0.006)


FORMATTED = {
    "duration": {0: "0 s", 0.00123: "1.23 ms", 45: "45.0 s", 59.97: "1 min 0 s", 125: "2 min 5 s"}
    | {3599.9: "1 h 0 min", 12000: "3 h 20 min", 187200: "2 d 4 h", -125: "-2 min 5 s"}
    | {math.inf: "inf s"},
    "energy": {0: "0 J", -1234: "-1.23 kJ", 999.7: "1.00 kJ", 5e12: "5000 GJ"}
    | {1.5e-12: "0.00150 nJ"},
    "power": {81: "81.0 W"},
    "mass": {0.25: "250 mg", 2.5e6: "2.50 t", 999_400: "999 kg"},
    "count": {7: "7", 61706: "61.7 k", (1.816e9, "FLOP"): "1.82 GFLOP"},
    "bytes": {512: "512 B", 3 * 2**29: "1.50 GiB", 2**20 - 1: "1.00 MiB"}
    | {1010 * 1024: "1010 KiB"},
    "share": {0.1234: "12.3 %"},
    "money": {(1234.567, "EUR"): "1234.57 EUR", (0.00012345, "EUR"): "0.000123 EUR", 0: "0"},
    "shape": {((),): "-"},
}


@pytest.mark.parametrize("kind", FORMATTED)
def test_format(kind):
    for given_, text in FORMATTED[kind].items():
        args = given_ if isinstance(given_, tuple) else (given_,)
        assert getattr(units, f"format_{kind}")(*args) == text
