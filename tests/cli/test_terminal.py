"""Numbers, tables and files as commands print and write them."""

from __future__ import annotations

import json

import pytest

from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.terminal import (
    format_interval,
    format_with_interval,
    make_bar,
    make_console,
    plural,
    print_table,
    shorten,
    shorten_path,
)
from joulecast.errors import FileError
from joulecast.units import format_duration, format_energy


def test_intervals_write_a_shared_unit_once():
    assert format_interval((1.87, 2.29), format_energy) == "1.87–2.29 J"
    assert format_interval((0.9, 1.1), format_energy) == "900 mJ – 1.10 J"
    assert format_interval((70.0, 200.0), format_duration) == "1 min 10 s – 3 min 20 s"


def test_energies_show_interval_and_provenance():
    energy = (2.07, (1.87, 2.29), 0.95)
    assert format_with_interval(*energy, "measured") == "2.07 J (95 % interval 1.87–2.29 J)"
    simulated = format_with_interval(*energy, "simulated")
    assert simulated == "2.07 J (simulated, 95 % interval 1.87–2.29 J)"


def test_counts_and_texts():
    assert plural(1, "net") == "1 net" and plural(1200, "net") == "1,200 nets"
    assert shorten("abcdef", 4) == "abc…" and shorten("abc", 4) == "abc"
    assert shorten_path("stages.0.layer.1.conv", 14) == "….layer.1.conv"
    assert shorten_path("layer.1", 14) == "layer.1"
    assert make_bar(0.5, 4) == "██" and make_bar(0.0) == ""


def test_tables_shorten_text_but_not_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    print_table(make_console(), ("layer", ">energy"), [("a" * 40, "123456789 J")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 30 and "123456789 J" in lines[2] and "…" in lines[2]


def test_a_result_goes_to_a_file_and_to_stdout(tmp_path, capsys):
    path = tmp_path / "result.json"
    write_result(OutputOptions(str(path)), {"a": 1}, lambda: print("text"))
    assert json.loads(path.read_text()) == {"a": 1} and capsys.readouterr().out == "text\n"
    write_result(OutputOptions(json=True), {"a": 1}, lambda: print("text"))
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    with pytest.raises(FileError, match="give another --out"):
        write_result(OutputOptions("/proc/no/where.json"), {}, lambda: None)
