"""Joules and watts in what a program prints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.meters.command import Quantity, read_quantity


@given(st.floats(0, 1e6, allow_subnormal=False), st.sampled_from(["J", "W"]))
def test_last_number_counts(value, unit):
    text = f"took 12 J, cpu0: 7 W at 35 C\n{value!r} {unit}"
    assert read_quantity(text) == Quantity(pytest.approx(value), unit)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("123.4 J", 123.4, "J"),
        ("55W", 55.0, "W"),
        ("250 mJ", 0.25, "J"),
        ("1.5kJ", 1500.0, "J"),
        ("700 mW", 0.7, "W"),
        ("2 Wh", 7200.0, "J"),
        ("1 mWh", 3.6, "J"),
        ("3 µJ", 3e-6, "J"),
        ("-4 W", -4.0, "W"),
        ("1,234.56 Joules power/energy-pkg/", 1234.56, "J"),
        ("12 watts", 12.0, "W"),
        ("power: 12.5 W (limit 700 GHz)", 12.5, "W"),
    ],
)
def test_units_and_prefixes(text, value, unit):
    quantity = read_quantity(text)
    assert (quantity.value, quantity.unit) == (pytest.approx(value), unit)


@pytest.mark.parametrize("text", ["", "42", "5 V", "12 Wx", "v1.2J3", "9 Jack", "W 7"])
def test_number_without_a_unit_is_ignored(text):
    with pytest.raises(InputError, match="no joules or watts"):
        read_quantity(text)


@pytest.mark.parametrize("text", ["power 1e999 W", "1e999 J", "1e308 GWh"])
def test_too_large_a_number_is_shown_as_printed(text):
    with pytest.raises(InputError, match=f"'{text.removeprefix('power ')}' is too large"):
        read_quantity(text)
