"""No page has a placeholder left."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
    for page in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_no_placeholders(page: Path) -> None:
    prose = re.sub(r"^    .*$|`[^`]*`", "", page.read_text(), flags=re.MULTILINE)
    assert not re.findall(r"\b[A-Z]{2,}_[A-Z_]+\b|\bTODO\b|\bFIXME\b", prose)
