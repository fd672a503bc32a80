"""Run the Python that the README and the command page show, as printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = "\n".join((ROOT / page).read_text() for page in ("README.md", "docs/commands.md"))
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
    for page in sorted(ROOT.glob(pattern))
]
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch) -> None:
    """Use an empty folder and store."""
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.chdir(tmp_path)


def test_pages_have_snippets() -> None:
    assert len(SNIPPETS) >= 2


@pytest.mark.parametrize("code", SNIPPETS)
def test_python_snippets_run(code: str, capsys) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert "J per step" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_no_placeholders(page: Path) -> None:
    prose = re.sub(r"^    .*$|`[^`]*`", "", page.read_text(), flags=re.MULTILINE)
    assert not re.findall(r"\b[A-Z]{2,}_[A-Z_]+\b|\bTODO\b|\bFIXME\b", prose)
