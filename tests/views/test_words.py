"""Numbers, tables and files as people read them."""

from __future__ import annotations

import io
import json

import pytest

from joulecast.cli.commands import write_json
from joulecast.system.errors import FileError
from joulecast.system.units import format_duration, format_energy, format_interval
from joulecast.views.report import Report, make_table
from joulecast.views.terminal import make_console, print_report
from joulecast.views.words import (
    format_with_interval,
    make_bar,
    plural,
    shorten,
    shorten_path,
)


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


def test_tables_shorten_text_but_not_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    table = make_table(("layer", ">energy"), [("a" * 40, "123456789 J")])
    print_report(Report("", (table,)), make_console(stream))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 30 and "123456789 J" in lines[2] and "…" in lines[2]


def test_a_result_goes_to_a_file(tmp_path):
    path = tmp_path / "result.json"
    write_json(str(path), {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(FileError, match="give another --out"):
        write_json("/proc/no/where.json", {})
