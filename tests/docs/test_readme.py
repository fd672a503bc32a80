"""Run what the README and the command page show: Python as printed, commands that need no GPU."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli

ROOT = Path(__file__).parents[2]
TEXT = "\n".join((ROOT / page).read_text() for page in ("README.md", "docs/commands.md"))
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
    for page in sorted(ROOT.glob(pattern))
]
COMMANDS = sorted(
    set(re.findall(r"^    (?:\$ )?joulecast (.+?)(?:\s+#.*)?$", TEXT, flags=re.MULTILINE))
)
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch) -> None:
    """Use an empty folder and store, with the examples linked."""
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


def test_pages_have_snippets_and_commands() -> None:
    assert len(SNIPPETS) >= 2
    assert len(COMMANDS) >= 12


@pytest.mark.parametrize("code", SNIPPETS)
def test_python_snippets_run(code: str, capsys) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert "J per step" in capsys.readouterr().out


@pytest.mark.parametrize("line", [command for command in COMMANDS if "cuda" not in command])
def test_commands_run(line: str) -> None:
    result = CliRunner().invoke(cli, shlex.split(line), prog_name="joulecast")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("line", [command for command in COMMANDS if "cuda" in command])
def test_gpu_commands_are_valid(line: str) -> None:
    """Check that they fail because the GPU is missing, not because of a wrong option."""
    result = CliRunner().invoke(cli, shlex.split(line), prog_name="joulecast")
    assert result.exit_code != 2, result.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_no_placeholders(page: Path) -> None:
    prose = re.sub(r"`[^`]*`", "", page.read_text())
    assert not re.findall(r"\b[A-Z]{2,}_[A-Z_]+\b|\bTODO\b|\bFIXME\b", prose)
