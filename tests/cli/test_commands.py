"""Commands that are made of verbs: values of options, and what they become."""

from __future__ import annotations

import click
import pytest

from joulecast.cli.commands import PLOT, DeclaredType
from joulecast.features.arguments import list_arguments
from joulecast.features.compare import compare
from joulecast.features.estimate import estimate_run

TYPES = {one.name: DeclaredType(one) for one in list_arguments(estimate_run)}
LISTS = {one.name: DeclaredType(one) for one in list_arguments(compare)}


@pytest.mark.parametrize(
    ("name", "texts", "value"),
    [
        ("level", ("90%", "0.9", " 90 % "), 0.9),
        ("charge", ("0%", "0"), 0.0),
        ("charge", ("100%", "1"), 1.0),
        ("rest_w", ("2.5",), 2.5),
    ],
)
def test_shares_are_percentages_or_fractions(name, texts, value):
    assert [TYPES[name].convert(text, None, None) for text in texts] == [value] * len(texts)


@pytest.mark.parametrize("text", ["-5", "many", "nan", "inf", "100%", "1.5"])
def test_numbers_are_finite_and_in_their_range(text):
    for name in ("level", "rest_w")[: 1 if text in ("100%", "1.5") else 2]:
        with pytest.raises(click.BadParameter):
            TYPES[name].convert(text, None, None)


def test_lists_keep_each_value_once():
    assert LISTS["devices"].convert("a, b,a", None, None) == ("a", "b")
    assert LISTS["batch"].convert("8,16", None, None) == (8, 16)
    assert TYPES["input_shape"].convert("3x96x96", None, None) == (3, 96, 96)
    for name, text in (("devices", " , "), ("batch", "8,x"), ("precision", "fp8")):
        with pytest.raises(click.BadParameter):
            LISTS[name].convert(text, None, None)


def test_plots_are_chosen_by_suffix():
    assert DeclaredType(PLOT).convert("front.SVG", None, None) == "front.SVG"
    with pytest.raises(click.BadParameter, match=r"front\.txt"):
        DeclaredType(PLOT).convert("front.txt", None, None)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("profile", "lenet5"), "--seconds"),
        (("evaluate", "lenet5"), "--seconds"),
        (("plan", "jobs.toml"), "--time-limit"),
        (("estimate", "lenet5", "--battery", "15Wh"), "--rest-w"),
    ],
)
def test_no_option_takes_nan(shell, command, option):
    assert "nan" in shell.fails(*command, option, "nan", code=2)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("estimate", "lenet5"), "--out"),
        (("inspect", "lenet5"), "--out"),
        (("evaluate", "lenet5"), "--plot"),
    ],
)
def test_a_missing_folder_is_reported_before_any_work(shell, command, option):
    line = shell.fails(*command, option, "missing/file.html", code=2)
    assert "there is no folder missing: create it" in line
