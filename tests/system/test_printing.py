"""Texts that people see: no password survives, nothing controls a terminal."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.system.printable import make_printable
from joulecast.system.redaction import redact_url

REDACTED = {
    "postgresql://ann:s3cret@db/lab": "postgresql://ann:***@db/lab",
    "postgres://ann:s3cret@db:5432/lab": "postgres://ann:***@db:5432/lab",
    "PostgreSQL+PsycoPG://ann:s3cret@db/lab": "PostgreSQL+PsycoPG://ann:***@db/lab",
    "nosuch+driver://ann:s3cret@db": "nosuch+driver://ann:***@db",
    "redis://:s3cret@cache:6379/0": "redis://:***@cache:6379/0",
    "0postgres://ann:s3cret@db": "0postgres://ann:***@db",
    "mysql ://ann:s3cret@db": "mysql ://ann:***@db",
    "store=postgresql://db/lab?password=s3cret": "store=postgresql://db/lab?password=***",
    "a=b=c?token=s3cret&d=e": "a=b=c?token=***&d=e",
    "postgres:/ann:s3cret@db": "postgres:/ann:***@db",
    "postgresql://ann:s3c@r/e?t#@db/lab": "postgresql://ann:***@db/lab",
    "postgresql://ann:s3 cr et@db/lab": "postgresql://ann:***@db/lab",
    "postgresql://db/lab?password=s3cret": "postgresql://db/lab?password=***",
    "postgresql://db/lab?p%61ssword=s3cret&user=ann": (
        "postgresql://db/lab?p%61ssword=***&user=ann"
    ),
    "postgresql://db/lab?SSLPassword=s3cret;x": "postgresql://db/lab?SSLPassword=***",
    "https://lab?api_key=s3cret": "https://lab?api_key=***",
    "host=db password=s3cret dbname=lab": "host=db password=*** dbname=lab",
    r"host=db password = 's3 \' cret' dbname=lab": "host=db password = *** dbname=lab",
    r'password="s3 \" cret" host=db': "password=*** host=db",
    "'postgres://ann:s3cret@db' is not a store": "'postgres://ann:***@db' is not a store",
    "cannot open 'postgresql://db/lab?password=s3cret': give another": (
        "cannot open 'postgresql://db/lab?password=***': give another"
    ),
}
UNCHANGED = [
    "postgresql://ann@db:5432/lab",
    "postgresql://db:5432/lab is down: write to ann@lab.org",
    "sqlite:////home/a:b@c/store.sqlite",
    "C:/stores/me@lab.sqlite",
    "http://lab: refused; ask ann@lab.org",
    "give max_tokens=128, passes=3 and batch=32",
    "",
]


@pytest.mark.parametrize("text", REDACTED)
def test_passwords_are_replaced(text):
    assert redact_url(text) == REDACTED[text]


@pytest.mark.parametrize("text", UNCHANGED)
def test_texts_without_passwords_are_unchanged(text):
    assert redact_url(text) == text


@given(st.text(st.characters(exclude_characters="@\n", exclude_categories=["Cs"]), min_size=1))
def test_no_password_of_a_url_survives(password):
    shown = redact_url(f"postgresql://ann:<{password}>@db/lab")
    assert shown == "postgresql://ann:***@db/lab"


@given(st.text())
def test_redacting_twice_changes_nothing_more(text):
    once = redact_url(f"postgresql://ann:{text}@db?password={text}")
    assert redact_url(once) == once


@pytest.mark.parametrize("part", ["a", "ab://c:", "ab://c:1/", "a='", "'", "password=", "@ "])
def test_long_texts_take_linear_time(part):
    start_s = time.process_time()
    redact_url(part * (200_000 // len(part)))
    assert time.process_time() - start_s < 5.0


# ---------------------------------------------------------------------------------------------
# Control characters

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
