"""A command line for every test, with a store, settings and folder of its own."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli_stores import export_profile, run_in_store
from joulecast.cli.main import cli

PROFILED = ("lenet5:4,8,16,16", "--batch", "8")


@dataclass(frozen=True)
class Shell:
    """Runs commands in an empty folder."""

    folder: Path

    def __call__(self, *words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, words, prog_name="joulecast")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *words: str) -> Any:
        """Return what a command prints with --json."""
        return json.loads(self(*words, "--json").stdout)

    def fails(self, *words: str, code: int = 1) -> str:
        """Return the one-line error of a command, which must not change any file."""
        before = self.snapshot()
        result = self(*words, code=code)
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("joulecast: ")
        assert self.snapshot() == before
        return lines[0]

    def snapshot(self) -> dict[str, bytes]:
        """Return every file and its content."""
        held = {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        # Compiled Python and SQLite's shared memory do not count.
        passing = ("__pycache__", "-shm")
        return {name: data for name, data in held.items() if data and not _has(name, passing)}


def _has(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("JOULECAST_STORE", str(folder / "store.sqlite"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("COLUMNS", raising=False)
    return Shell(folder)


@pytest.fixture
def write(shell: Shell) -> Callable[[str, str], str]:
    """Return a function that writes a file into the test's folder."""

    def put(name: str, text: str) -> str:
        (shell.folder / name).write_text(text)
        return name

    return put


@pytest.fixture(scope="session")
def store_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a simulated device's profile for lenet5 up to some widths."""
    path = tmp_path_factory.mktemp("profile") / "store.sqlite"
    run_in_store(path, "profile", *PROFILED, "--on", "simulated:7", "--points", "30")
    return path


@pytest.fixture(scope="session")
def profile_file(store_file: Path) -> Path:
    """Return the file of that profile."""
    return export_profile(store_file)


@pytest.fixture
def profiled(shell: Shell, store_file: Path) -> Shell:
    """Return a command line whose store has the profile of a simulated device."""
    shutil.copy(store_file, shell.folder / "store.sqlite")
    return shell
