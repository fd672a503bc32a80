"""Read runs that others have measured: CSV with a net and joules, and logs of other tools.

    csv             net,energy_j,duration_s[,steps,batch,precision,…]     one run per line
    zeus            start_time,window_name,elapsed_time,gpu0_energy,…     one window per line, in J
    codecarbon      …,project_name,…,duration,…,energy_consumed,…         one run per line, in kWh
    carbontracker   Actual consumption for 3 epoch(s): Time, Energy       one run per file, in kWh

Sources of the formats:

- Zeus: https://github.com/ml-energy/zeus, zeus/monitor/energy.py: ``ZeusMonitor(log_file=...)``.
- CodeCarbon: https://github.com/mlco2/codecarbon, codecarbon/output_methods/emissions_data.py, the
  columns of ``emissions.csv``. ``energy_consumed`` is that of CPU, GPU and RAM together.
- Carbontracker: https://github.com/lfwa/carbontracker, carbontracker/parser.py: the patterns with
  which it reads its own logs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from joulecast.system.errors import FileError, InputError
from joulecast.system.files import read_limited, show_value
from joulecast.system.units import JOULES_PER_KWH
from joulecast.traces.power_trace import CsvTable, read_csv

AUTO = "auto"
# Columns of our CSV that say how a net was trained; other columns are ignored.
SETUP_COLUMNS = ("batch", "phase", "precision", "optimizer", "loss", "threads")
_ENERGY_COLUMNS = {"energy_j": 1.0, "joules": 1.0, "energy_kwh": JOULES_PER_KWH}
_MOST_LOG_BYTES = 16 * 2**20
_ZEUS_ENERGY = re.compile(r"gpu\d+_energy")
_TRACKED = re.compile(
    r"Actual consumption for (\d+) epoch\(s\):\s*Time:\s*(\d+):(\d{2}):(\d{1,2}(?:\.\d+)?)\s*"
    r"Energy:\s*(\S+)\s*kWh",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LoggedRun:
    """A run as a log reports it.

    Attributes:
        place: File and line, for messages.
        energy_j: Energy of the whole run.
        duration_s: Duration of the whole run.
        net: What the log calls the net; empty if it does not say.
        device: What the log calls the device; empty if it does not say.
        window: Name of Zeus's window.
        steps: Number of steps, where the log has it.
        epochs: Number of epochs, where the log has it.
        setup: Fields of a setup, as text.
    """

    place: str
    energy_j: float
    duration_s: float
    net: str = ""
    device: str = ""
    window: str = ""
    steps: int | None = None
    epochs: int | None = None
    setup: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunLog:
    """The runs of one file.

    Attributes:
        tool: The format: one of ``TOOLS``.
        covers: What its energies include; empty if the file does not say.
    """

    tool: str
    covers: str
    runs: tuple[LoggedRun, ...]


def read_run_log(path: str | Path, tool: str = AUTO) -> RunLog:
    """Return the runs in a file.

    Args:
        path: The file.
        tool: One of ``TOOLS``, or ``auto``: recognised by the content.

    Raises:
        InputError: There is no such format.
        FileError: The file cannot be read, is in no known format, or a value is impossible.
    """
    path = Path(path)
    tool = _recognise(path) if tool == AUTO else tool
    if tool not in _READERS:
        raise InputError(f"tool is {tool!r}: choose from {', '.join((AUTO, *TOOLS))}")
    reader, covers = _READERS[tool]
    runs = tuple(reader(path))
    if not runs:
        raise FileError(f"{path} has no runs: give a log of a run that has ended")
    return RunLog(tool, covers, runs)


def _recognise(path: Path) -> str:
    table = _find_table(path)
    if table is not None:
        for tool, names in _MARKS.items():
            if names <= set(table.columns):
                return tool
        if "net" in table.columns:
            return "csv"
    if _TRACKED.search(_read_text(path)):
        return "carbontracker"
    raise FileError(
        f"{path} is in no known format: give a CSV with the columns net, energy_j and duration_s, "
        "or a log of Zeus, CodeCarbon or Carbontracker"
    )


def _find_table(path: Path) -> CsvTable | None:
    try:
        return read_csv(path)
    except FileError:
        # Logs may begin with an empty line; what cannot be read at all fails again below.
        return None


def _read_text(path: Path) -> str:
    return read_limited(path, _MOST_LOG_BYTES).decode("utf-8", errors="replace")


def _read_runs_csv(path: Path) -> Iterator[LoggedRun]:
    table = read_csv(path)
    energy = next((name for name in _ENERGY_COLUMNS if name in table.columns), "")
    missing = [name for name in ("net", "duration_s") if name not in table.columns]
    if missing or not energy:
        wanted = ", ".join([*missing, *([] if energy else ["energy_j"])])
        raise FileError(
            f"{path} has no column {wanted}: name net, energy_j and duration_s in the first line"
        )
    for place, row in _read_rows(table):
        steps = _read_count(row, "steps", place)
        yield LoggedRun(
            place,
            _ENERGY_COLUMNS[energy] * _read_number(row, energy, place),
            _read_number(row, "duration_s", place),
            net=row["net"],
            device=row.get("device", ""),
            steps=steps,
            epochs=_read_count(row, "epochs", place),
            setup={name: row[name] for name in SETUP_COLUMNS if row.get(name)},
        )


def _read_zeus(path: Path) -> Iterator[LoggedRun]:
    table = read_csv(path)
    energies = [name for name in table.columns if _ZEUS_ENERGY.fullmatch(name)]
    _check_columns(table, (*_MARKS["zeus"], *(() if energies else ("gpu0_energy",))))
    for place, row in _read_rows(table):
        yield LoggedRun(
            place,
            sum(_read_number(row, name, place) for name in energies),
            _read_number(row, "elapsed_time", place),
            window=row["window_name"],
        )


def _read_codecarbon(path: Path) -> Iterator[LoggedRun]:
    table = read_csv(path)
    _check_columns(table, _MARKS["codecarbon"])
    for place, row in _read_rows(table):
        yield LoggedRun(
            place,
            JOULES_PER_KWH * _read_number(row, "energy_consumed", place),
            _read_number(row, "duration", place),
            net=row["project_name"],
            device=row.get("gpu_model") or row.get("cpu_model") or "",
        )


def _read_carbontracker(path: Path) -> Iterator[LoggedRun]:
    # A tracker that is stopped twice reports twice: the last one is the whole run.
    matches = list(_TRACKED.finditer(_read_text(path)))
    for epochs, hours, minutes, seconds, energy in (one.groups() for one in matches[-1:]):
        row = {"energy": energy}
        yield LoggedRun(
            str(path),
            JOULES_PER_KWH * _read_number(row, "energy", str(path)),
            3600 * int(hours) + 60 * int(minutes) + float(seconds),
            epochs=int(epochs),
        )


_MARKS = {
    "zeus": {"start_time", "window_name", "elapsed_time"},
    "codecarbon": {"project_name", "duration", "emissions", "energy_consumed"},
}
_READERS: dict[str, tuple[Callable[[Path], Iterator[LoggedRun]], str]] = {
    "csv": (_read_runs_csv, ""),
    "zeus": (_read_zeus, "gpu"),
    "codecarbon": (_read_codecarbon, "cpu+gpu+ram"),
    "carbontracker": (_read_carbontracker, "cpu+gpu"),
}
TOOLS = tuple(_READERS)


def _check_columns(table: CsvTable, names: Iterator[str] | set[str] | tuple[str, ...]) -> None:
    missing = sorted(set(names) - set(table.columns))
    if missing:
        raise FileError(f"{table.path} has no column {', '.join(missing)}: check the format")


def _read_rows(table: CsvTable) -> Iterator[tuple[str, dict[str, str]]]:
    for line, cells in table.read_rows():
        place = f"{table.path}, line {line}"
        if len(cells) < len(table.columns):
            raise FileError(
                f"{place} has {len(cells)} cells instead of {len(table.columns)}: complete it"
            )
        stripped = [cell.strip() for cell in cells]
        yield place, dict(zip(table.columns, stripped, strict=False))


def _read_number(row: Mapping[str, str], name: str, place: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not 0 < value < 1e15:
        raise FileError(f"{place}: {name} is {show_value(row[name])}: give a number above 0")
    return value


def _read_count(row: Mapping[str, str], name: str, place: str) -> int | None:
    text = row.get(name, "")
    if not text:
        return None
    if not (text.isdecimal() and int(text[:12]) > 0 and len(text) < 10):
        raise FileError(f"{place}: {name} is {show_value(text)}: give a whole number above 0")
    return int(text)
