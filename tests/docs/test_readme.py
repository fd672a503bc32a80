"""What the README shows is run: its Python as it stands, its commands where they need no GPU."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli

README_PATH = Path(__file__).parents[2] / "README.md"
README = README_PATH.read_text()
PAGES = [
    page
    for place in ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
    for page in sorted(README_PATH.parent.glob(place))
]
COMMANDS = re.findall(r"^    (?:\$ )?joulecast (.+?)(?:\s+#.*)?$", README, flags=re.MULTILINE)
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch) -> None:
    """A store of its own, and a folder to write into with the examples in it."""
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))
    (tmp_path / "examples").symlink_to(README_PATH.parent / "examples")
    monkeypatch.chdir(tmp_path)


def test_there_is_something_to_run() -> None:
    assert len(SNIPPETS) >= 1
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("code", SNIPPETS)
def test_python_runs(code: str, capsys) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert "J a step" in capsys.readouterr().out


@pytest.mark.parametrize("line", [c for c in COMMANDS if "cuda" not in c and "train.py" not in c])
def test_commands_run(line: str) -> None:
    done = CliRunner().invoke(cli, shlex.split(line), prog_name="joulecast")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("line", [c for c in COMMANDS if "cuda" in c])
def test_commands_that_need_a_gpu_take_these_options(line: str) -> None:
    """They end at the device that is not there, not at an option that is not known."""
    done = CliRunner().invoke(cli, shlex.split(line), prog_name="joulecast")
    assert done.exit_code != 2, done.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_holds_a_placeholder(page: Path) -> None:
    prose = re.sub(r"`[^`]*`", "", page.read_text())
    assert not re.findall(r"\b[A-Z]{2,}_[A-Z_]+\b|\bTODO\b|\bFIXME\b", prose)
