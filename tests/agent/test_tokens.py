"""Tokens come from files and variables, and never appear in errors."""

import pytest

from agent_processes import TOKEN
from joulecast.agent.addresses import read_token
from joulecast.errors import InputError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def test_token_is_that_of_the_file_then_of_the_environment(file):
    assert read_token(str(file), {"JOULECAST_TOKEN": "x" * 20}) == TOKEN
    assert read_token("", {"JOULECAST_TOKEN_FILE": str(file)}) == TOKEN
    assert read_token("", {"JOULECAST_TOKEN": TOKEN}) == TOKEN
    assert read_token("", {}) == ""


def test_file_that_others_can_read_is_refused(file):
    file.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600") as caught:
        read_token(str(file), {})
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("content", ["short", "with spaces in the middle", "x" * 1025, "ü" * 20])
def test_other_contents_are_no_tokens(file, content):
    file.write_text(content)
    for words in ((str(file), {}), ("", {"JOULECAST_TOKEN": content})):
        with pytest.raises(InputError, match="16 to 1024 characters") as caught:
            read_token(*words)
        assert content not in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_token(str(tmp_path / "none"), {})
