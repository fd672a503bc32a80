"""The page about scores: its picture, its commands and its numbers are those of the program."""

import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli
from joulecast.features.device_score import (
    ENERGY_SCALE,
    POWER_SCALE,
    list_published_notes,
    score_phones,
)

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "scores.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty folder and store."""
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, words, prog_name="joulecast", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_picture_is_what_the_command_draws(tmp_path: Path) -> None:
    command = re.search(r"`joulecast (score --published --devices [^`]+)`", TEXT)
    assert command is not None and "score-label.svg" in command[1]
    run("score", "--published", "--devices", "P40 Pro", "--svg", "score-label.svg")
    assert (tmp_path / "score-label.svg").read_text() == (DOCS / "score-label.svg").read_text()
    score = {one.score.name: one.score for one in score_phones()}["P40 Pro"]
    shown = f"letter {score.label}, PCS {score.pcs}, IECS {score.iecs:.0f}"
    assert f"{shown}, {score.wh_per_1000_inferences:.3f} Wh per 1,000 inferences" in TEXT


def test_the_chart_of_the_page_is_drawn(tmp_path: Path) -> None:
    (table,) = re.findall(r"```csv\n(.*?)```", TEXT, flags=re.DOTALL)
    Path("phones.csv").write_text(table)
    run("score", "--published", "--device-file", "phones.csv", "--plot", "chart.svg")
    assert {one.name for one in tmp_path.glob("chart*")} == {
        "chart-price.svg", "chart-performance.svg",
    }  # fmt: skip


def test_options_of_all_commands_exist() -> None:
    commands = re.findall(r"^    joulecast (score .+?|data export .+?)(?:\s+#.*)?$", TEXT, re.M)
    assert len(commands) == 6
    for command in commands:
        verb = ["data", "export"] if command.startswith("data") else ["score"]
        known = run(*verb, "--help")
        assert all(option in known for option in re.findall(r"--[a-z-]+", command))


def test_thresholds_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| \*\*([A-G])\*\* \| (.+?) \| (.+?) \|", TEXT, re.M)
    expected = [
        (letter, f"from {least:g}", f"from {ENERGY_SCALE[letter]:g}")
        for letter, least in POWER_SCALE.items()
    ]
    assert rows == [*expected, ("G", "below", "below")]
    phones = [one.score for one in score_phones()]
    assert {one.pcs_label for one in phones} == set("CDE")
    assert {one.iecs_label for one in phones} == set("CD")
    counts = re.findall(r"^\| \*\*([A-G])\*\* .*\| (\d) of ", TEXT, re.M)
    assert {letter: int(count) for letter, count in counts} == Counter(one.label for one in phones)


def test_what_follows_from_the_published_tables_is_on_the_page() -> None:
    *printed, last = [str(one.pcs_printed_tdp) for one in score_phones()]
    prose = " ".join(TEXT.split())
    assert f"{', '.join(printed)} and {last}" in prose
    notes = " ".join(list_published_notes())
    for words in ("1.05 to 1.28", "2.9 %", "25,000", "117.8 instead of 151.7", "Snapdragon 665"):
        assert words in prose and words in notes
