"""Tables of TOML files: named tables, known keys, and values that can be used."""

import pytest

from joulecast.system.errors import InputError
from joulecast.system.toml_tables import (
    list_tables,
    parse_number,
    parse_share_value,
    parse_table,
    parse_text,
)


def test_tables_are_listed_with_what_messages_call_them():
    rows = list_tables({"job": [{"name": "a"}, {"name": "b", "x": 1}]}, "job")
    assert rows == [("[[job]] a", {"name": "a"}), ("[[job]] b", {"name": "b", "x": 1})]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "is missing"),
        ({"job": []}, "is missing"),
        ({"job": [3]}, "number 1 is 3"),
        ({"job": [{"name": "a"}, {}]}, "number 2 has no name"),
        ({"job": [{"name": "a"}, {"name": "a"}]}, "two .* are called 'a'"),
    ],
)
def test_tables_without_a_name_of_their_own_are_refused(data, words):
    with pytest.raises(InputError, match=words):
        list_tables(data, "job")


def test_values_are_parsed_by_key_and_errors_name_both():
    parsers = {"text": parse_text, "number": parse_number, "share": parse_share_value}
    row = {"text": "a", "number": 2, "share": "60%"}
    assert parse_table("[[job]] a", row, parsers) == {"text": "a", "number": 2.0, "share": 0.6}
    for key, value in (("text", " "), ("number", True), ("number", -1), ("share", [1])):
        with pytest.raises(InputError, match=rf"\[\[job\]\] a: {key} is .*give"):
            parse_table("[[job]] a", {key: value}, parsers)
    with pytest.raises(InputError, match="unknown key 'colour': known keys are text, number"):
        parse_table("[[job]] a", {"colour": 1}, parsers)
