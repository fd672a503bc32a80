"""Commands of how-tos run as printed, unless they need a GPU or the reader's own files."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = ("search.md", "compare.md")
NEEDS = ("cuda", "train.py")


def list_commands(page: str) -> list[str]:
    """Return the indented lines that call the program, with continued lines joined."""
    text = (FOLDER / page).read_text().replace("\\\n", " ")
    return re.findall(r"^    joulecast (.+)$", text, flags=re.MULTILINE)


COMMANDS = [(page, line) for page in PAGES for line in list_commands(page)]


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.chdir(tmp_path)


def test_every_page_shows_a_command() -> None:
    assert {page for page, _ in COMMANDS} == set(PAGES)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_runs_or_stops_at_a_missing_file(page: str, line: str) -> None:
    done = CliRunner().invoke(cli, shlex.split(line), prog_name="joulecast")
    if any(word in line for word in NEEDS):
        # It stops at the reader's own file, not at an unknown option.
        assert done.exit_code == 1, done.output
        assert "there is no file" in done.output
    else:
        assert done.exit_code == 0, done.output
