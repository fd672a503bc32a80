"""Pages have no placeholder left, and their files and options are those of the program."""

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli
from joulecast.features.plan.problem import parse_plan_request

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


def test_the_file_on_the_page_can_be_read():
    (text,) = re.findall(
        r"```toml\n(.*?)```", (ROOT / "docs/how-to/plan.md").read_text(), flags=re.DOTALL
    )
    request = parse_plan_request(tomllib.loads(text), datetime(2030, 5, 1, tzinfo=UTC))
    assert [job.name for job in request.jobs] == ["keyboard", "photos"]
    phone, board = request.devices
    assert phone.battery is not None and phone.battery.windows[0].power_w == 18
    assert board.max_parallel == 2 and board.power_w == 15


def test_every_option_on_the_page_exists() -> None:
    page = (ROOT / "docs/how-to/prune.md").read_text()
    known = CliRunner().invoke(cli, ["prune", "--help"]).output
    for option in re.findall(r"`(--[a-z]+)", page):
        assert option in known or option == "--missing", option
