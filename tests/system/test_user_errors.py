"""Errors of a user's code name the file and line that the user can change."""

from __future__ import annotations

import importlib.util
import json

import pytest

from joulecast.system.user_errors import describe_user_error

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
    class Flat:
        def dim(self):
            return 1

    shown = describe(code.check, Flat())
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
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError

    def fail():
        raise Broken

    assert describe(code.call, fail).startswith("Broken: raise Broken (")


def test_errors_without_user_code_name_the_library():
    error = json.JSONDecodeError("no", "", 0)
    assert describe_user_error(error) == "JSONDecodeError: no: line 1 column 1 (char 0)"
    assert describe_user_error(AssertionError()) == "AssertionError"


def test_messages_are_short_and_without_passwords(code):
    shown = describe(code.leak)
    assert shown.startswith("ValueError: cannot open postgres://ann:***@db!!!") and len(shown) < 400
    assert shown.endswith("(net.py, line 17, in leak)")
