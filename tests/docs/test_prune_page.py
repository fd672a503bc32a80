"""The Python of the pruning page runs, and its options exist."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli

PAGE = (Path(__file__).parents[2] / "docs/how-to/prune.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))


def test_python_runs(capsys) -> None:
    (code,) = SNIPPETS
    exec(compile(code, "prune.md", "exec"), {})
    assert "J per step, P(budget)" in capsys.readouterr().out


def test_every_option_on_the_page_exists() -> None:
    known = CliRunner().invoke(cli, ["prune", "--help"]).output
    for option in re.findall(r"`(--[a-z]+)", PAGE):
        assert option in known or option == "--missing", option
