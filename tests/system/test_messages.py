"""What people see: errors of one line that name the user's code, no passwords, no escapes."""

import importlib.util
import inspect
import json
import re
import time
import unicodedata
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.system import errors
from joulecast.system.errors import JoulecastError
from joulecast.system.printable import make_printable
from joulecast.system.redaction import redact_url
from joulecast.system.user_errors import describe_user_error

ERRORS = [one for _, one in inspect.getmembers(errors, inspect.isclass)]


def test_module_documents_every_error_below_its_base():
    depths = {
        name: len(indent) // 4
        for indent, name in re.findall(r"^    ([ │├└─]*)(\w+Error)\b", errors.__doc__, re.MULTILINE)
    }
    assert set(depths) == {error.__name__ for error in ERRORS}
    for error in ERRORS:
        bases = [one for one in error.__mro__[1:] if issubclass(one, JoulecastError)]
        assert depths[error.__name__] == len(bases)


@pytest.mark.parametrize("error", ERRORS)
def test_messages_are_one_line_and_safe_to_show(error):
    shown = str(error("no \x1b[2J at\npostgres://ann:s3cret@db: check it"))
    assert shown == r"no \x1b[2J at postgres://ann:***@db: check it"


# -- passwords ----------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("text", "shown"), [*REDACTED.items(), *((text, text) for text in UNCHANGED)]
)
def test_passwords_are_replaced(text, shown):
    assert redact_url(text) == shown


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


# -- control characters -------------------------------------------------------------------------

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
    assert make_printable(f"a\n{text}", keep_newlines=True).startswith("a\n")


def test_text_of_people_is_unchanged():
    text = "Größe 2.07 J (95 % interval 1.87–2.29 J) … 電力 █▏ → \\x1b"
    assert make_printable(text) is text


@given(st.text())
def test_result_is_printable_and_stays_so(text):
    once = make_printable(text)
    assert not {unicodedata.category(one) for one in once} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert make_printable(once) == once


# -- errors of a user's code name the file and line that the user can change --------------------

CODE = """
import json

def divide(x):
    return 1 / x

def parse(text):
    return json.loads(text)

def check(x):
    assert x.dim() == 4

def call(function):
    function()

def leak():
    raise ValueError("cannot open postgres://ann:s3cret@db" + "!" * 400)

def raise_empty():
    raise KeyboardInterrupt
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Return a module in a file of the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("user_net", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def describe(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:
        return describe_user_error(error)
    raise AssertionError("nothing was raised")


def test_the_innermost_frame_of_the_user_is_named(code):
    assert describe(code.divide, 0).endswith("division by zero (net.py, line 5, in divide)")
    text = describe(code.parse, "{")
    assert text.startswith("JSONDecodeError: Expecting property name")
    assert text.endswith("(net.py, line 8, in parse)")
    assert describe(code.call, lambda: code.divide(0)).endswith("(net.py, line 5, in divide)")


def test_a_bare_assert_shows_what_failed(code):
    shown = describe(code.check, Mock(**{"dim.return_value": 1}))
    assert shown == "AssertionError: assert x.dim() == 4 (net.py, line 11, in check)"
    assert describe(code.raise_empty).startswith("KeyboardInterrupt: raise KeyboardInterrupt (")


def test_places_elsewhere_have_a_full_path(code, tmp_path, monkeypatch):
    here = tmp_path / "below"
    here.mkdir()
    monkeypatch.chdir(here)
    assert describe(code.divide, 0).endswith(f"({tmp_path}/net.py, line 5, in divide)")
    here.rmdir()
    assert describe(code.divide, 0).endswith(f"({tmp_path}/net.py, line 5, in divide)")


def test_a_message_that_fails_is_left_out(code):
    broken = type("Broken", (Exception,), {"__str__": Mock(side_effect=RuntimeError)})

    def fail():
        raise broken

    assert describe(code.call, fail).startswith("Broken: raise broken (")


def test_errors_without_user_code_name_the_library():
    error = json.JSONDecodeError("no", "", 0)
    assert describe_user_error(error) == "JSONDecodeError: no: line 1 column 1 (char 0)"
    assert describe_user_error(AssertionError()) == "AssertionError"


def test_messages_are_short_and_without_passwords(code):
    shown = describe(code.leak)
    assert shown.startswith("ValueError: cannot open postgres://ann:***@db!!!") and len(shown) < 400
    assert shown.endswith("(net.py, line 17, in leak)")
