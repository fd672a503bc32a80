"""Requests over stdin and stdout, one line each."""

import json
import subprocess

import pytest

from agent_processes import PROGRAM, make_trial
from joulecast.agent.messages import MOST_REQUEST_BYTES, AgentRequest, encode_message

COMMAND = (*PROGRAM, "--stdio", "--on", "simulated:3")


def run(content, command=COMMAND):
    done = subprocess.run(command, input=content, capture_output=True, timeout=60, check=False)
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_each_line_is_answered_until_the_end_of_the_input():
    requests = [AgentRequest("0" * 8, "describe"), AgentRequest("1" * 8, "time", make_trial())]
    lines = [encode_message(one) for one in requests] * 2
    done, answers = run(b"".join(line + b"\n" for line in [*lines, b"nonsense"]))
    assert done.returncode == 0 and done.stderr == b""
    assert [one["id"] for one in answers] == ["0" * 8, "1" * 8, "0" * 8, "1" * 8, ""]
    assert answers[1] == answers[3] and answers[1]["observation"]["duration_s"] > 0
    assert "not JSON" in answers[4]["error"]["message"]


def test_line_that_is_too_long_ends_the_conversation():
    request = encode_message(AgentRequest("0" * 8, "describe")) + b"\n"
    done, answers = run(b"[" * (MOST_REQUEST_BYTES + 10) + b"\n" + request)
    assert done.returncode == 0 and len(answers) == 1
    assert "larger than 8 MiB" in answers[0]["error"]["message"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--on", "simulated:x"], "give its seed"),
        (["--meter", "rapl"], "leave --meter rapl out"),
        (["--token-file", "none"], "there is no file none"),
    ],
)
def test_agent_that_cannot_start_says_why_in_one_line(words, part):
    done, answers = run(b"", [*COMMAND, *words])
    assert done.returncode == 1 and not answers
    assert len(done.stderr.splitlines()) == 1 and part in done.stderr.decode()
