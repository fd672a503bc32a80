"""Units: formatted quantities parse back, and conversions are linear."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.system import units
from joulecast.system.errors import InputError

positive = st.floats(1e-9, 1e12)
one_line = re.compile(r"[^\n]+")


@given(positive)
def test_parsing_formatted_energy_keeps_three_digits(energy_j):
    assert math.isclose(units.parse_energy(units.format_energy(energy_j)), energy_j, rel_tol=0.006)


@given(st.floats(1e-9, 9.99e11))
def test_energy_has_at_most_three_digits_before_the_point(energy_j):
    number = units.format_energy(energy_j).split()[0]
    assert 1 <= float(number) < 1000
    assert len(number.replace(".", "")) == 3


@given(positive, positive)
def test_formatting_keeps_the_order(a, b):
    low, high = sorted((a, b))
    read = units.parse_energy
    assert read(units.format_energy(low)) <= read(units.format_energy(high))


@pytest.mark.parametrize(
    ("text", "energy_j"),
    [
        ("15Wh", 54_000),
        ("5J", 5),
        ("2kWh", 7.2e6),
        ("2 KWh", 7.2e6),
        ("300mWh", 1080),
        ("1 MWh", 3.6e9),
        ("3 µJ", 3e-6),
        ("3uj", 3e-6),
        (" .5 Wh ", 1800),
        ("1e3J", 1000),
    ],
)
def test_parse_energy(text, energy_j):
    assert units.parse_energy(text) == pytest.approx(energy_j, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "15", "Wh", "-5J", "5 Ws", "nanJ", "1e999J", "15Wh/day", "4000mAh"]
)
def test_parse_energy_refuses_other_text_with_an_example(text):
    with pytest.raises(InputError, match="like 15Wh") as caught:
        units.parse_energy(text)
    assert one_line.fullmatch(str(caught.value))
    assert repr(text) in str(caught.value)


def test_parse_energy_explains_milliampere_hours():
    with pytest.raises(InputError, match="volts"):
        units.parse_energy("4000mAh")


@given(positive, st.floats(1, 1e9))
def test_battery_share_is_linear(energy_j, battery_j):
    share = units.battery_share(energy_j, battery_j)
    assert share * battery_j == pytest.approx(energy_j)
    assert units.battery_share(2 * energy_j, battery_j) == pytest.approx(2 * share)


@pytest.mark.parametrize("battery_j", [0.0, -1.0, math.nan])
def test_battery_without_capacity_is_refused(battery_j):
    with pytest.raises(InputError, match="15Wh"):
        units.battery_share(1.0, battery_j)


@given(positive, st.floats(0.001, 1000))
def test_price_and_co2e_are_per_kilowatt_hour(energy_j, rate):
    kwh = units.joules_to_kwh(energy_j)
    assert units.co2e_g(energy_j, rate) == pytest.approx(kwh * rate)
    assert units.price_energy(energy_j, rate) == pytest.approx(kwh * rate)
    assert units.joules_to_kwh(units.parse_energy("1kWh")) == 1.0


@given(st.floats(0, 5000))
def test_parse_grid_reads_numbers_in_g_and_kg_per_kwh(rate):
    for text in (f"{rate!r}", f"{rate!r}g/kWh", f"{rate!r} gCO2e/kWh", f"{rate!r} G CO2/KWH"):
        assert units.parse_grid(text) == rate
    assert units.parse_grid(f"{rate!r} kg/kWh") == pytest.approx(1000 * rate)


@pytest.mark.parametrize("name", units.GRIDS)
def test_named_grids_ignore_case(name):
    assert units.parse_grid(name.upper()) == units.GRIDS[name]
    assert 10 < units.GRIDS[name] < 1000


@pytest.mark.parametrize("text", ["", "mars", "-1", "400 lb/MWh", "nan"])
def test_parse_grid_error_lists_named_grids(text):
    with pytest.raises(InputError, match="400, or one of world") as caught:
        units.parse_grid(text)
    assert one_line.fullmatch(str(caught.value))


@given(st.floats(0, 1e6), st.sampled_from(["", "EUR", "USD", "€", "$", "£"]))
def test_price_round_trip(amount, currency):
    price = units.Price(amount, currency)
    assert units.parse_price(str(price)) == price
    assert units.parse_price(f"{currency}{amount!r}") == price
    assert units.parse_price(f" {amount!r}{currency} / kWh ") == price


@pytest.mark.parametrize("text", ["", "EUR", "free", "-0.3", "0,30", "€0.30EUR", "0.30/MWh", "inf"])
def test_parse_price_refuses_other_text_with_an_example(text):
    with pytest.raises(InputError, match=r"0\.30EUR") as caught:
        units.parse_price(text)
    assert one_line.fullmatch(str(caught.value))


def _read_duration(text):
    scales = {"d": 86400, "h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    words = text.split()
    return sum(float(n) * scales[unit] for n, unit in zip(words[::2], words[1::2], strict=True))


@given(st.floats(1e-9, 1e9))
def test_formatted_duration_is_right_to_the_smaller_unit(duration_s):
    text = units.format_duration(duration_s)
    assert math.isclose(_read_duration(text), duration_s, rel_tol=0.025)
    assert not re.search(r"(?<![\d.])(60 (s|min)|24 h)", text)


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "0 s"),
        (0.00123, "1.23 ms"),
        (45, "45.0 s"),
        (59.97, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3599.9, "1 h 0 min"),
        (12000, "3 h 20 min"),
        (187200, "2 d 4 h"),
        (-125, "-2 min 5 s"),
        (math.inf, "inf s"),
    ],
)
def test_format_duration(duration_s, text):
    assert units.format_duration(duration_s) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (units.format_energy(0), "0 J"),
        (units.format_energy(-1234), "-1.23 kJ"),
        (units.format_energy(999.7), "1.00 kJ"),
        (units.format_energy(5e12), "5000 GJ"),
        (units.format_energy(1.5e-12), "0.00150 nJ"),
        (units.format_power(81), "81.0 W"),
        (units.format_mass(0.25), "250 mg"),
        (units.format_mass(2.5e6), "2.50 t"),
        (units.format_mass(999_400), "999 kg"),
        (units.format_count(7), "7"),
        (units.format_count(1.816e9, "FLOP"), "1.82 GFLOP"),
        (units.format_count(61706), "61.7 k"),
        (units.format_bytes(512), "512 B"),
        (units.format_bytes(1536 * 1024**2), "1.50 GiB"),
        (units.format_bytes(1024**2 - 1), "1.00 MiB"),
        (units.format_bytes(1010 * 1024), "1010 KiB"),
        (units.format_share(0.1234), "12.3 %"),
        (units.format_money(1234.567, "EUR"), "1234.57 EUR"),
        (units.format_money(0.00012345, "EUR"), "0.000123 EUR"),
        (units.format_money(0), "0"),
    ],
)
def test_format(written, text):
    assert written == text


@given(st.floats(1, 1e15))
def test_bytes_and_counts_are_right_to_three_digits(size):
    number, unit = units.format_bytes(size).split()
    power = ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert math.isclose(float(number) * 1024**power, size, rel_tol=0.006, abs_tol=0.5)
    number, *prefix = units.format_count(size).split()
    power = ["", "k", "M", "G", "T"].index("".join(prefix))
    assert math.isclose(float(number) * 1000**power, size, rel_tol=0.006)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("45s", 45),
        ("90min", 5400),
        ("2h", 7200),
        ("1h30min", 5400),
        ("2 d", 172800),
        ("5ms", 0.005),
    ],
)
def test_parse_duration(text, duration_s):
    assert units.parse_duration(text) == pytest.approx(duration_s)


@given(st.floats(0.001, 1e7))
def test_parsing_formatted_duration_is_close(duration_s):
    shown = units.parse_duration(units.format_duration(duration_s).replace("µs", "ms"))
    assert shown == pytest.approx(duration_s, rel=0.05)


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("500MB", 5e8), ("1024B", 1024), ("2 kB", 2000)]
)
def test_parse_bytes(text, size):
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(("text", "share"), [("60%", 0.6), ("0.6", 0.6), ("0", 0), ("100 %", 1)])
def test_parse_share(text, share):
    assert units.parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("parse", "text", "example"),
    [
        (units.parse_duration, "", "90min"),
        (units.parse_duration, "2", "90min"),
        (units.parse_duration, "2 weeks", "90min"),
        (units.parse_duration, "-2h", "90min"),
        (units.parse_bytes, "8", "8GiB"),
        (units.parse_bytes, "8 bytes", "8GiB"),
        (units.parse_share, "120%", "60%"),
        (units.parse_share, "half", "60%"),
    ],
)
def test_parse_errors_give_an_example(parse, text, example):
    with pytest.raises(InputError, match=example):
        parse(text)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=4).map(tuple))
def test_shape_round_trip(shape):
    assert units.parse_shape(units.format_shape(shape)) == shape
    assert units.parse_shape(units.format_shape(shape).upper()) == shape


@pytest.mark.parametrize("text", ["", "x", "3x", "3x0", "-3x4", "3,96,96", "3x9.5"])
def test_parse_shape_refuses_other_text_with_an_example(text):
    with pytest.raises(InputError, match="3x96x96") as caught:
        units.parse_shape(text)
    assert one_line.fullmatch(str(caught.value))


def test_shape_of_a_scalar_is_a_dash():
    assert units.format_shape(()) == "-"


@pytest.mark.parametrize(
    ("text", "power_w"), [("15W", 15.0), ("700 mW", 0.7), ("1.2kW", 1200.0), ("1.5 w", 1.5)]
)
def test_parse_power(text, power_w):
    assert units.parse_power(text) == pytest.approx(power_w)


@pytest.mark.parametrize("text", ["15", "W", "-3W", "15Wh", "nanW", "1e999W"])
def test_parse_power_refuses_other_text_with_an_example(text):
    with pytest.raises(InputError, match="15W"):
        units.parse_power(text)


@pytest.mark.parametrize(
    ("text", "money"), [("599EUR", (599.0, "EUR")), ("€599", (599.0, "€")), ("599", (599.0, ""))]
)
def test_parse_money(text, money):
    assert units.parse_money(text) == money


@pytest.mark.parametrize("text", ["", "EUR", "cheap", "-5EUR", "€5EUR", "599EUR/kWh"])
def test_parse_money_refuses_other_text_with_an_example(text):
    with pytest.raises(InputError, match="599EUR"):
        units.parse_money(text)
