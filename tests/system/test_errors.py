"""The hierarchy of errors, as its module documents it."""

import inspect
import re

import pytest

from joulecast.system import errors
from joulecast.system.errors import JoulecastError

ERRORS = [one for _, one in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_a_joulecast_error(error):
    assert issubclass(error, JoulecastError)


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
