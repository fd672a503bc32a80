"""Files of others are read within limits, and refused in one line."""

import zlib

import pytest

from joulecast.errors import FileError
from joulecast.input_files import decompress, parse_json, read_limited, read_toml, show_value


def test_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "some"
    path.write_bytes(b"x" * 2**20)
    assert len(read_limited(path, 2**20)) == 2**20
    path.write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(FileError, match="larger than 1 MiB: give a smaller file"):
        read_limited(path, 2**20)


def test_endless_file_is_refused(tmp_path):
    path = tmp_path / "endless"
    path.symlink_to("/dev/zero")
    with pytest.raises(FileError, match="larger than 1 MiB"):
        read_limited(path, 2**20)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("none", "there is no file"), (".", "cannot be read"), ("a\0b", "cannot be read"),
     ("x" * 300, "cannot be read")],
)  # fmt: skip
def test_unreadable_file_is_named(tmp_path, name, reason):
    with pytest.raises(FileError, match=reason) as caught:
        read_limited(tmp_path / name, 10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[" * 10**5, b"\xff", "9" * 5000])
def test_text_that_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\S"):
        parse_json(text)


def test_toml_file_is_read(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text('a = "ä"\n[b]\nc = 1\n')
    assert read_toml(path) == {"a": "ä", "b": {"c": 1}}


@pytest.mark.parametrize(
    "content",
    [b"a =", b"\xff", b"a = " + b"[" * 600 + b"]" * 600, b"a = " + b"9" * 5000, b"a" * 2**21],
)
def test_file_that_is_no_toml_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "some.toml"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read_toml(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_long_values_are_shown_in_short():
    assert len(show_value([1] * 10**6)) < 100
    assert len(show_value("x" * 10**6)) < 100
    assert show_value(10**5000) == "a number of thousands of digits"


def test_unpacked_size_is_limited():
    packed = zlib.compress(b"x" * 1000)
    assert decompress(packed, 1000) == b"x" * 1000
    with pytest.raises(ValueError, match="more than 0 MiB"):
        decompress(packed, 999)
    with pytest.raises(ValueError, match="incomplete"):
        decompress(packed[:-3])
    with pytest.raises(ValueError, match="header"):
        decompress(b"no zlib")
