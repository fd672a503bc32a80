"""Files with TDP, price and performance, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from joulecast.errors import FileError
from joulecast.uses.score import DeviceFacts
from joulecast.uses.score.device_file import read_device_file

TOML = """
[[device]]
name = "phone"
tdp = "6W"
price = "199EUR"
performance = 12.5

[[device]]
name = "board"
"""
CSV = "name,tdp,price,performance\nphone,6W,199EUR,12.5\nboard,,,\n"


@pytest.mark.parametrize(("name", "text"), [("d.toml", TOML), ("d.csv", CSV)])
def test_both_formats_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    facts = read_device_file(tmp_path / name)
    assert facts == {
        "phone": DeviceFacts(6.0, price=199.0, currency="EUR", inferences_per_s=12.5),
        "board": DeviceFacts(),
    }


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("d.toml", '[[device]]\nname = "x"\ntdp = "6"', "like 15W"),
        ("d.toml", '[[device]]\nname = "x"\ntdp = "0W"', "more than 0 W"),
        ("d.toml", '[[device]]\nname = "x"\nwatts = 6', "unknown key 'watts'"),
        ("d.toml", "", "[[device]] is missing"),
        ("d.toml", "devices = 3", "unknown key 'devices'"),
        ("d.csv", "name,price\nx,cheap\n", "line 2: price is 'cheap'"),
        ("d.csv", "name,performance\nx,-1\n", "inferences per second, like 120"),
        ("d.csv", "name,performance\nx,nan\n", "inferences per second, like 120"),
        ("d.csv", "tdp\n6W\n", "no column name"),
        ("d.csv", "name,tdp\n,6W\n", "line 2 has no name"),
        ("d.csv", "name,tdp\nx,6W\nx,7W\n", "'x' is there twice"),
        ("d.csv", "name,tdp\n", "no devices"),
        ("d.csv", "name,colour\nx,red\n", "unknown key 'colour'"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError) as caught:
        read_device_file(tmp_path / name)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
