"""Run the cases, each in a process and a folder of its own, and compare results.

Nothing but the program ``joulecast`` is used, so that this works whatever its modules are called.
"""

import csv
import json
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.json"

# Times of our own running, names that are drawn at random, versions and paths.
PASSING = {
    "taken_at_s", "changed_at_s", "created_at_s", "run", "run_id", "runs_by_id", "store", "file",
    "path", "timestamp", "installed_runtime", "wall_s", "search_s", "solve_s", "version",
    "device_path", "seconds_searched", "codecarbon_version", "python_version", "os", "cpu_model",
    "cpu_count", "date",
}  # fmt: skip
# Sentences: kept to be read, compared with --text alone.
TEXT = {"notes", "note", "reason", "message", "why", "sources", "source", "title", "text", "error"}
LONG, KEPT = 12, 5


def prepare() -> None:
    """Import what cases need, once, so that a case can start within milliseconds."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in [one for one in os.environ if one.startswith("JOULECAST_")]:
        del os.environ[name]
    os.environ.pop("COLUMNS", None)
    os.environ["TZ"] = "UTC"
    import numpy  # noqa: F401
    import scipy.linalg
    import scipy.optimize  # noqa: F401
    import torch

    torch.set_num_threads(1)
    import joulecast

    # Modules stay imported in the processes of all cases.
    joulecast.estimate("cnn5", device="nvidia-h200")
    joulecast.estimate("cnn5", device="rtx-4090")


def run_case(commands: list[str]) -> dict[str, Any]:
    """Run the command lines of a case; return exit codes, the last result and last messages."""
    base = Path(tempfile.mkdtemp(prefix="golden-"))
    try:
        folder = base / "here"
        shutil.copytree(HERE / "assets", folder)
        codes = []
        for words in commands:
            pid = os.fork()
            if pid == 0:
                _run_and_exit(shlex.split(words.replace("@", "")), base, folder)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        found: dict[str, Any] = {"codes": codes}
        stdout, stderr = ((base / one).read_text(errors="replace") for one in ("out", "err"))
        files = re.findall(r"@(\S+)", commands[-1])
        if files and codes[-1] == 0:
            with (folder / files[0]).open(newline="") as file:
                found["result"] = shrink(drop(list(csv.DictReader(file))), keep=100)
        elif stdout.lstrip()[:1] in ("{", "["):
            found["result"] = shrink(drop(json.loads(stdout)))
        if stderr:
            found["stderr"] = stderr.replace(str(folder), "FOLDER").replace(str(base), "BASE")[:400]
        return found
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _run_and_exit(words: list[str], base: Path, folder: Path) -> None:
    """Run the program in this process, which is a child, and end it."""
    code = 99
    try:
        os.chdir(folder)
        os.environ["HOME"] = str(base / "home")
        os.environ["JOULECAST_STORE"] = str(folder / "store.sqlite")
        for name in ("CONFIG", "DATA", "CACHE"):
            os.environ[f"XDG_{name}_HOME"] = str(base / name.lower())
        for number, name in ((1, "out"), (2, "err")):
            opened = os.open(base / name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(opened, number)
            os.close(opened)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        sys.argv = ["joulecast", *words]
        try:
            _find_program()()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _find_program() -> Any:
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="console_scripts", name="joulecast")
    return entry.load()


def drop(data: Any) -> Any:
    """Return data without what differs between two runs; numbers in CSV become numbers."""
    if isinstance(data, dict):
        # A search says how long it took itself.
        passing = PASSING | {"duration_s"} if "screened" in data else PASSING
        return {key: drop(value) for key, value in data.items() if key not in passing}
    if isinstance(data, list):
        return [drop(one) for one in data]
    if isinstance(data, str) and re.fullmatch(r"-?\d+\.\d+(e[-+]?\d+)?", data):
        return float(data)
    return data


def shrink(data: Any, keep: int = LONG) -> Any:
    """Return data whose long lists are replaced by their beginning and sums of their numbers."""
    if isinstance(data, dict):
        return {key: shrink(value, keep) for key, value in data.items()}
    if not isinstance(data, list):
        return data
    if len(data) <= keep:
        return [shrink(one, keep) for one in data]
    sums: dict[str, float] = {}
    for one in data:
        for path, value in flatten(one):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                sums[path] = sums.get(path, 0) + value
    return {"count": len(data), "first": [shrink(one, keep) for one in data[:KEPT]], "sums": sums}


def flatten(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its path."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flatten(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list) and data:
        for number, value in enumerate(data):
            yield from flatten(value, f"{path}[{number}]")
    else:
        yield path, data


def compare(old: Any, new: Any, tolerance: float, text: bool = False) -> list[str]:
    """Return a line for every difference."""
    before, after = dict(flatten(old)), dict(flatten(new))
    lines = []
    for path in [*before, *(one for one in after if one not in before)]:
        names = set(re.split(r"[.\[]", path))
        if path == "stderr" or (names & TEXT and not text):
            continue
        if path not in after:
            lines.append(f"{path}: {_show(before[path])} is missing now")
        elif path not in before:
            lines.append(f"{path}: {_show(after[path])} is new")
        elif not _is_equal(before[path], after[path], tolerance):
            lines.append(f"{path}: {_show(before[path])} -> {_show(after[path])}")
    return lines


def _show(value: Any) -> str:
    return repr(value)[:120]


def _is_equal(one: Any, other: Any, tolerance: float) -> bool:
    if all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (one, other)):
        return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-15)
    return type(one) is type(other) and one == other


def choose(names: Iterable[str], only: str, quick: Iterable[str] = ()) -> list[str]:
    """Return the names that match a regular expression, or are quick."""
    wanted = set(quick)
    return [one for one in names if re.search(only, one) and (not wanted or one in wanted)]
