"""``joulecast report`` writes one HTML file, or SVG files."""

import json

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli
from report_examples import PRUNING


@pytest.fixture
def result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pruning.json").write_text(json.dumps(PRUNING))
    return tmp_path


def run(*words):
    return CliRunner().invoke(cli, ["report", *words], prog_name="joulecast")


def test_report_is_one_file_and_says_what_was_not_measured(result):
    done = run("pruning.json")
    assert done.exit_code == 0, done.output
    assert "pruned to 50% for board (modelled)" in done.output
    assert [one.name for one in sorted(result.iterdir())] == ["pruning.json", "report.html"]


def test_svg_is_written_instead_unless_both_are_wished(result):
    assert run("pruning.json", "--svg", "pictures").exit_code == 0
    assert [one.name for one in (result / "pictures").iterdir()] == ["layers.svg"]
    assert not (result / "report.html").exists()
    done = run("pruning.json", "--svg", "pictures", "--out", "page.html")
    assert "Wrote page.html" in done.output and (result / "page.html").exists()


def test_json_lists_the_files(result):
    found = json.loads(run("pruning.json", "--json").stdout)
    assert found["files"] == ["report.html"] and found["provenance"] == "modelled"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("pruning.json", "--out", "page.pdf"), 2, "give a file that ends in .html"),
        (("pruning.json", "--out", "none/page.html"), 2, "there is no folder none"),
        (("none.json",), 1, "there is no file none.json"),
        ((), 2, "WHAT"),
    ],
)
def test_wrong_options_are_refused_in_one_line(result, words, code, text):
    done = run(*words)
    assert done.exit_code == code and text in done.output
