"""Files of others are read within limits, and refused in one line."""

import json
import sys
import zlib

import pytest

from joulecast.system.errors import FileError, InputError
from joulecast.system.files import (
    MOST_LEVELS,
    decompress,
    parse_json,
    read_limited,
    read_toml,
    show_value,
)
from joulecast.system.toml_tables import (
    list_tables,
    parse_number,
    parse_share_value,
    parse_table,
    parse_text,
)
from refusals import refusal


@pytest.fixture
def high_recursion_limit():
    """Raise Python's recursion limit as torch.compile does."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    yield
    sys.setrecursionlimit(before)


def test_file_is_read_up_to_its_limit(tmp_path):
    path, endless = tmp_path / "some", tmp_path / "endless"
    path.write_bytes(b"x" * 2**20)
    assert len(read_limited(path, 2**20)) == 2**20
    path.write_bytes(b"x" * (2**20 + 1))
    endless.symlink_to("/dev/zero")
    for large in (path, endless):
        with pytest.raises(FileError, match="larger than 1 MiB: give a smaller file"):
            read_limited(large, 2**20)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("none", "there is no file"), (".", "cannot be read"), ("a\0b", "cannot be read"),
     ("x" * 300, "cannot be read")],
)  # fmt: skip
def test_unreadable_file_is_named(tmp_path, name, reason):
    with refusal(FileError, reason):
        read_limited(tmp_path / name, 10)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[" * 10**5, b"\xff", "9" * 5000])
def test_text_that_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\S"):
        parse_json(text)


def nest(levels, opening="[", closing="]", inner=""):
    return opening * levels + inner + closing * levels


STRINGS = {
    "plain": "a",
    "opening brackets": "[" * 500,
    "closing brackets": "}" * 500,
    "quotes": 'a"[',
    "backslashes": "[\\",
    "both": '\\"]\\\\"[',
    "quotes in UTF-16": "\u225b\u5d22",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-be"])
@pytest.mark.parametrize("string", STRINGS.values(), ids=STRINGS)
@pytest.mark.usefixtures("high_recursion_limit")
def test_json_has_a_fixed_depth_whatever_its_strings_contain(string, encoding):
    text = json.dumps(string, ensure_ascii=False)
    opening, closing = f"[{text}, ", f", {text}]"
    allowed = nest(MOST_LEVELS, opening, closing, text)
    deep = nest(MOST_LEVELS + 1, opening, closing, text)
    assert parse_json(allowed) == parse_json(allowed.encode(encoding)) == json.loads(allowed)
    for given in (deep, deep.encode(encoding), deep.rstrip("]"), nest(1000, opening, closing)):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(given)


@pytest.mark.usefixtures("high_recursion_limit")
@pytest.mark.parametrize(
    ("opening", "closing", "inner", "allowed"),
    [
        ("[", "]", "1", MOST_LEVELS),
        ('{"a": ', "}", "1", MOST_LEVELS),
        ('[{"a": ', "}]", "1", MOST_LEVELS // 2),
        ("[[], [{}], ", "]", "[[]]", MOST_LEVELS - 2),
    ],
)
def test_deep_json_is_refused_however_it_is_nested(opening, closing, inner, allowed):
    assert parse_json(nest(allowed, opening, closing, inner))
    for levels in (allowed + 1, 10**5):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(nest(levels, opening, closing, inner))


def test_many_shallow_values_are_parsed():
    assert parse_json("[" + '{"a": [[1], {}]}, ' * 10**4 + "{}]")[-2] == {"a": [[1], {}]}


@pytest.fixture
def toml(tmp_path):
    """Return a function that reads a text as a TOML file."""

    def read(content):
        path = tmp_path / "some.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_toml(path)

    return read


@pytest.mark.parametrize(
    "content",
    [b"a =", b"\xff", b"a = " + b"[" * 600 + b"]" * 600, b"a = " + b"9" * 5000, b"a" * 2**21],
)
def test_file_that_is_no_toml_is_refused_in_one_line(toml, content):
    assert toml('a = "ä"\n[b]\nc = 1\n') == {"a": "ä", "b": {"c": 1}}
    with refusal(FileError, r"some\.toml"):
        toml(content)


TOML_VALUES = {
    "array": nest(MOST_LEVELS),
    "table": nest(MOST_LEVELS, "{a = ", "}", "1"),
    "basic string": '"' + "[" * 500 + '\\"]"',
    "literal string": "'" + "[" * 500 + "\\'",
    "multi-line string": '"""' + "[" * 500 + '\n"" \\"""]""""',
    "multi-line literal string": "'''" + "{" * 500 + "\n''''",
    "comment": "1 # it's " + "[" * 500,
    "many numbers": "[" + "0.5, " * 500 + "]",
    "dots in a string": "'" + "." * 500 + "'",
}


@pytest.mark.parametrize("value", TOML_VALUES.values(), ids=TOML_VALUES)
@pytest.mark.usefixtures("high_recursion_limit")
def test_toml_has_a_fixed_depth_whatever_its_strings_contain(toml, value):
    assert toml(f"a = {value}\nb = 1\n")["b"] == 1
    with pytest.raises(FileError, match="nested too deeply"):
        toml(f"a = {value}\nb = {nest(MOST_LEVELS + 1)}\n")


KEY = ".".join("a" * (MOST_LEVELS + 1))


@pytest.mark.parametrize(
    "deep",
    [f"{KEY}.a = 1", f"[{KEY}.a]\nb = 1", f"{KEY} = [1]", '"a".' * 10**5 + "a = 1",
     "a.b.c = " + nest(10**5)],
)  # fmt: skip
@pytest.mark.usefixtures("high_recursion_limit")
def test_deep_toml_is_refused_however_it_is_nested(toml, deep):
    assert list(toml(f"{KEY} = 1")) == ["a"]
    with pytest.raises(FileError, match="nested too deeply"):
        toml(deep)


def test_long_values_are_shown_in_short():
    assert len(show_value([1] * 10**6)) < 100
    assert len(show_value("x" * 10**6)) < 100
    assert show_value(10**5000) == "a number of thousands of digits"


def test_unpacked_size_is_limited():
    packed = zlib.compress(b"x" * 1000)
    assert decompress(packed, 1000) == b"x" * 1000
    for data, most, reason in (
        (packed, 999, "more than 0 MiB"),
        (packed[:-3], 1000, "incomplete"),
        (b"no zlib", 1000, "header"),
    ):
        with pytest.raises(ValueError, match=reason):
            decompress(data, most)


# -- tables of TOML files: named tables, known keys, and values that can be used ----------------


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
