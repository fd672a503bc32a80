"""The card of a device fits a terminal and says what its numbers are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.cli.print_score import format_number, print_card, print_scores
from joulecast.uses.score import DeviceFacts, DeviceScore, ScoredConfiguration

SCORE = DeviceScore(
    "board",
    "torch-2.13.0",
    "board",
    "measured",
    (
        ScoredConfiguration("super_resolution", "1 thread", energy_j=0.1, power_w=2.0),
        ScoredConfiguration("super_resolution", "4 threads", missing="it does not fit"),
    ),
    DeviceFacts(10.0, price=599.0, currency="EUR"),
)


@pytest.mark.parametrize("columns", ["80", "100"])
def test_the_card_fits_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    print_card(replace(SCORE, name="n" * 200))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(columns)


def test_the_card_has_scores_letters_and_units(capsys):
    print_card(SCORE)
    out = capsys.readouterr().out
    assert "80 (B)" in out and "10.0 (B)" in out and "2.00 W of 10.0 W TDP" in out
    assert "Wh per 1,000 inferences" in out and "0.0278" in out and "599.00 EUR" in out
    assert "super resolution" in out and "it does not fit" in out
    assert "our reading" in out and "thresholds of A to G are ours" in out
    (marked,) = [line for line in out.splitlines() if "◀ B" in line]
    assert marked.lstrip("│ ").startswith("B ")


def test_the_card_says_that_the_tdp_is_missing(capsys):
    print_card(replace(SCORE, facts=DeviceFacts(None)))
    assert "2.00 W, TDP not known" in capsys.readouterr().out


def test_several_devices_say_when_they_cannot_be_compared(capsys):
    print_scores([SCORE, replace(SCORE, name="other", covers="cpu", provenance="modelled")])
    out = " ".join(capsys.readouterr().out.split())
    assert "other: joules are modelled." in out and "meters cover different parts" in out
    print_scores([SCORE, replace(SCORE, configurations=SCORE.configurations[:1] * 2)])
    assert "IECS is not comparable" in capsys.readouterr().out
    print_scores([SCORE, replace(SCORE, name="other")])
    assert "not comparable" not in capsys.readouterr().out.lower()


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0278, "0.0278"), (12.0, "12.0"), (1164.2, "1,164")]
)
def test_numbers_have_three_digits(value, text):
    assert format_number(value) == text
