"""``reproduce`` runs experiments of the paper, and says what is wrong in one line."""

from __future__ import annotations

import json

from joulecast.uses.reproduce import EXPERIMENTS

FAST = ("reproduce", "fig5", "--on", "simulated:7", "--quick", "--out", "results")


def test_text_and_json_say_whether_the_statement_held(shell):
    text = shell(*FAST).stdout
    assert "fig5  A fully connected layer over its input channels (simulated): held" in text
    assert "The paper:" in text and "simulated, not a real device" in text
    data = shell.json(*FAST)
    assert data["is_complete"] and data["results"][0]["verdict"] == "held"
    assert (shell.folder / "results" / "fig5.svg").exists()
    stored = json.loads((shell.folder / "results" / "fig5.json").read_text())
    assert stored == data["results"][0]


def test_what_is_measured_can_be_drawn_later(shell):
    shell(*FAST, "--measure-only")
    assert not (shell.folder / "results" / "fig5.json").exists()
    shell("reproduce", "fig5", "--redraw", "--out", "results")
    assert (shell.folder / "results" / "summary.md").exists()


def test_dry_run_refuses_an_unknown_device(shell):
    line = shell.fails("reproduce", "fig2", "--on", "gpu7", "--dry-run")
    assert "there is no device 'gpu7': give cpu or cuda:0" in line


def test_dry_run_lists_everything_and_measures_nothing(shell):
    text = shell("reproduce", "all", "--on", "cuda:0", "--dry-run").stdout
    assert all(name in text for name in EXPERIMENTS)
    assert "cnn5: test networks" in text and not shell.snapshot()
    data = shell.json("reproduce", "fig2", "--dry-run")
    assert list(data) == ["fig2"] and data["fig2"][0]["trials"] == 9


def test_errors_are_one_line(shell, write):
    write("file", "x")
    near = shell.fails("reproduce", "fig77")
    assert "there is no experiment 'fig77'; did you mean fig7" in near
    far = shell.fails("reproduce", "everything-else")
    assert "choose from fig2" in far and "table1" in far
    assert "name at least one experiment" in shell.fails("reproduce")
    assert "file is a file: give --out a folder" in shell.fails(
        "reproduce", "fig5", "--out", "file"
    )
    assert "holds no measurements" in shell.fails("reproduce", "fig5", "--redraw")
    assert "cuda:0 was not found" in shell.fails("reproduce", "fig5", "--on", "cuda:0")
    both = shell.fails("reproduce", "fig5", "--redraw", "--measure-only")
    assert "measure_only measures and redraw does not" in both
