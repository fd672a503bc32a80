"""CSV files of others are read within limits."""

import pytest

from joulecast.errors import FileError
from joulecast.traces import power_trace as csv_tables
from joulecast.traces.power_trace import read_csv


def test_columns_and_rows_keep_their_lines(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes('\ufeffa; b ;c\r\n\r\n1;2;"x;y"\r\n'.encode())
    table = read_csv(path)
    assert table.columns == ("a", "b", "c")
    assert list(table.read_rows()) == [(3, ["1", "2", "x;y"])]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\xff\xfe\x00a", "no text"), (b"a\0b\n", "no text"), (b"", "no header")],
)
def test_what_is_no_table_is_refused(tmp_path, content, reason):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(FileError, match=reason):
        read_csv(path)


def test_large_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "MOST_TRACE_BYTES", 2**20)
    path = tmp_path / "table.csv"
    path.write_bytes(b"a,b\n" * 300_000)
    with pytest.raises(FileError, match="larger than 1 MiB"):
        read_csv(path)


def test_enormous_cells_are_refused_in_one_line(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n" + "9" * 200_000 + ",1\n")
    with pytest.raises(FileError, match="line 2 is not CSV"):
        list(read_csv(path).read_rows())
