"""Nothing that controls a terminal passes, and everything else does."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.system.printable import make_printable

HOSTILE = {
    "\x1b[2J": r"\x1b[2J",
    "\x1b]52;c;Z2V0\x07": r"\x1b]52;c;Z2V0\x07",
    "a\rb\nc\td": r"a\rb\nc\td",
    "\x9b31m": r"\x9b31m",
    "\u202ecod.exe": r"\u202ecod.exe",
    "\u2028\u2029": r"\u2028\u2029",
    "\ud800": r"\ud800",
    "\x7f": r"\x7f",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_escaped(text):
    assert make_printable(text) == HOSTILE[text]


def test_text_of_people_is_unchanged():
    text = "Größe 2.07 J (95 % interval 1.87–2.29 J) … 電力 █▏ → \\x1b"
    assert make_printable(text) is text


def test_newlines_stay_on_request():
    assert make_printable("a\n\x1bb", keep_newlines=True) == "a\n\\x1bb"


@given(st.text())
def test_result_is_printable_and_stays_so(text):
    once = make_printable(text)
    assert not {unicodedata.category(one) for one in once} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert make_printable(once) == once
