"""Values of options: shares, numbers, shapes, lists and plot files."""

from __future__ import annotations

import click
import pytest

from joulecast.cli.option_types import ListType, NumberType, PlotType, ShapeType, ShareType


@pytest.mark.parametrize("text", ["90%", "0.9", 0.9, " 90 % "])
def test_shares_are_percentages_or_fractions(text):
    assert ShareType().convert(text, None, None) == pytest.approx(0.9)


@pytest.mark.parametrize("text", ["0", "100%", "1.5", "-5%", "many", "nan"])
def test_shares_lie_between_0_and_1(text):
    with pytest.raises(click.BadParameter, match="is not a share"):
        ShareType().convert(text, None, None)


def test_shares_may_include_their_ends_or_start_higher():
    closed = ShareType(is_open=False)
    assert closed.convert("0%", None, None) == 0 and closed.convert("100%", None, None) == 1
    assert ShareType(least=0.5).convert("50%", None, None) == 0.5
    with pytest.raises(click.BadParameter, match="between 50% and 100%"):
        ShareType(least=0.5).convert("49%", None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "many"])
def test_numbers_are_finite_and_in_their_range(text):
    assert NumberType(0).convert("2.5", None, None) == 2.5
    with pytest.raises(click.BadParameter, match=text):
        NumberType(0).convert(text, None, None)


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


def test_shapes_are_sizes():
    assert ShapeType().convert("3x96x96", None, None) == (3, 96, 96)
    with pytest.raises(click.BadParameter, match="3x96x96"):
        ShapeType().convert("3x", None, None)


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


def test_lists_keep_each_value_once():
    assert ListType().convert("a, b,a", None, None) == ("a", "b")
    assert ListType().convert([4, 8], None, None) == ("4", "8")
    with pytest.raises(click.BadParameter, match="give at least one"):
        ListType().convert(" , ", None, None)
    with pytest.raises(click.BadParameter, match="choose from a, b"):
        ListType(("a", "b")).convert("a,c", None, None)


def test_plots_are_chosen_by_suffix():
    assert PlotType().convert("front.SVG", None, None) == "front.SVG"
    with pytest.raises(click.BadParameter, match=r"\.html, \.svg, \.png, \.pdf"):
        PlotType().convert("front.txt", None, None)
