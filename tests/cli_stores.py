"""Stores that commands filled once, to be copied for many tests."""

import sqlite3
from contextlib import closing
from pathlib import Path

from click.testing import CliRunner

from joulecast.cli.main import cli


def run_in_store(path: Path, *words: str) -> str:
    """Run a command with a store, and return what it prints; the store is one file afterwards."""
    command = (*words, "--store", str(path))
    result = CliRunner().invoke(cli, command, prog_name="joulecast")
    assert result.exit_code == 0, result.output
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return result.stdout


def export_profile(store: Path) -> Path:
    """Write the profile of a simulated device in a store to a file beside it."""
    path = store.with_suffix(".json")
    run_in_store(store, "profiles", "export", "sim", str(path))
    return path
