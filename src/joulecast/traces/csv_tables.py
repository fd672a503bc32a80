"""Read CSV files of others: within limits of size, as rows by column name."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from joulecast.errors import FileError
from joulecast.input_files import first_line, read_limited

MOST_TRACE_BYTES = 256 * 2**20
"""Size of a CSV file: half an hour of an instrument that samples 5,000 times a second."""
# Spreadsheets of many countries write semicolons, because their decimal sign is a comma.
_DELIMITERS = ",;\t"


@dataclass(frozen=True)
class CsvTable:
    """A CSV file with a header.

    Attributes:
        path: The file, for messages.
        columns: Names in the header, without blanks around them.
    """

    path: Path
    columns: tuple[str, ...]
    _text: str
    _delimiter: str

    def read_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of each line after the header, and its cells; empty lines are skipped.

        Raises:
            FileError: A line is not CSV.
        """
        reader = csv.reader(io.StringIO(self._text), delimiter=self._delimiter)
        try:
            next(reader)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
        except csv.Error as error:
            reason = first_line(error)
            raise FileError(f"{self.path}: line {reader.line_num} is not CSV ({reason})") from error


def read_csv(path: Path) -> CsvTable:
    """Return a CSV file.

    Raises:
        FileError: The file is missing, empty, too large or no text.
    """
    content = read_limited(path, MOST_TRACE_BYTES)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is no text: give a CSV file") from error
    if "\0" in text:
        raise FileError(f"{path} is no text: give a CSV file")
    header = text.split("\n", 1)[0].rstrip("\r")
    if not header.strip():
        raise FileError(f"{path} has no header: its first line must name the columns")
    delimiter = max(_DELIMITERS, key=header.count)
    try:
        names = next(csv.reader([header], delimiter=delimiter))
    except csv.Error as error:
        raise FileError(f"{path}: the header is not CSV ({first_line(error)})") from error
    return CsvTable(path, tuple(name.strip() for name in names), text, delimiter)
