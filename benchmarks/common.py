"""Shared by the benchmarks: packed files of results, profiles of any file, and the rivals.

Benchmarks are modules of a clone, run from its root: ``python -m benchmarks.accuracy.run``.
"""

from __future__ import annotations

import json
import lzma
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from joulecast.records import Profile
from joulecast.store import open_store
from joulecast.store.files import read_profile, write_profile
from joulecast.system.errors import FileError
from joulecast.system.plugins import load_plugins

HERE = Path(__file__).parent


def read_bytes(file: Path) -> bytes:
    """Return what a file holds, unpacked if it is .xz.

    Raises:
        FileError: There is no such file, or it is damaged.
    """
    try:
        data = file.read_bytes()
        return lzma.decompress(data) if file.suffix == ".xz" else data
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise FileError(f"{file} cannot be read ({error})") from error


def write_bytes(file: Path, data: bytes) -> None:
    """Write a file at once, packed if it is .xz; equal data give equal bytes."""
    new = file.with_name(file.name + ".new")
    new.write_bytes(lzma.compress(data, preset=9) if file.suffix == ".xz" else data)
    new.replace(file)


def read_json(file: Path) -> Any:
    """Return the JSON of a file, packed or not."""
    return json.loads(read_bytes(file))


def write_json(file: Path, data: Any) -> None:
    """Write JSON; packed files without spaces."""
    if file.suffix == ".xz":
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    else:
        text = json.dumps(data, indent=1, allow_nan=False)
    write_bytes(file, text.encode() + b"\n")


def read_profiles(file: Path) -> list[Profile]:
    """Return the profiles of a store, or the one of a profile file, packed or not."""
    if file.suffix in (".json", ".xz"):
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "profile.json"
            plain.write_bytes(read_bytes(file))
            return [read_profile(plain)]
    if not file.exists():
        raise FileError(f"no file {file}: give a store or a file of observations")
    with open_store(file, create=False) as store:
        return [store.load_profile(one.key) for one in store.list_profiles() if not one.shipped]


def pack_profile(profile: Profile, file: Path) -> None:
    """Write a profile as a packed file, which ``joulecast profiles import`` reads unpacked."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "profile.json"
        write_profile(profile, plain)
        write_bytes(file, plain.read_bytes())


def use_rivals() -> None:
    """Make the estimators of ``benchmarks/rivals`` known by their names."""
    folder = str(HERE / "rivals")
    if folder not in sys.path:
        sys.path.insert(0, folder)
        load_plugins.cache_clear()


def find_commit(script: str) -> str:
    """Return the commit of the clone that contains a script (its ``__file__``).

    A plus marks uncommitted changes; untracked files and files in ``results`` folders do not count.
    Outside a clone the result is empty.
    """
    folder = str(Path(script).parent)
    commit = _run_git(folder, "rev-parse", "--short", "HEAD")
    changed = _run_git(
        folder, "status", "--porcelain", "-uno", "--", ":/", ":(exclude,top,glob)**/results/**"
    )
    return commit + "+" * bool(commit and changed)


def _run_git(folder: str, *arguments: str) -> str:
    command = ["git", "-C", folder, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def find_processor() -> str:
    """Return the name of the processor according to Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
