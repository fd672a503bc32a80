"""Requests and answers travel as JSON, and whatever is damaged is refused."""

import json

import pytest

from agent_processes import make_trial
from joulecast import errors
from joulecast.agent.messages import (
    AgentAnswer,
    AgentRequest,
    SentError,
    decode_message,
    describe_error,
    drop_trial,
    encode_message,
)
from joulecast.errors import InputError, JoulecastError, MeasurementError, MissingError
from joulecast.meters import UnavailableError
from joulecast.records import Device, Observation

ID = "0123456789abcdef"


def test_request_is_what_was_sent():
    request = AgentRequest(ID, "measure", make_trial(), rounds=5, run="run")
    assert decode_message(AgentRequest, encode_message(request), "client") == request


def test_answer_gets_its_trial_back():
    seen = Observation(make_trial(), 1.0, duration_s=0.5, device=Device("board"), run="run")
    sent = encode_message(AgentAnswer(ID, observation=drop_trial(seen), disturbances={"gap": 2}))
    assert len(sent) < 1000
    answer = decode_message(AgentAnswer, sent, "agent")
    assert answer.take_observation(make_trial()) == seen
    assert answer.disturbances == {"gap": 2}


@pytest.mark.parametrize(
    "cls", [one for one in vars(errors).values() if isinstance(one, type)], ids=lambda c: c.__name__
)
def test_every_error_arrives_as_itself(cls):
    sent = encode_message(AgentAnswer(ID, error=describe_error(cls("what to do"))))
    with pytest.raises(cls, match="what to do") as caught:
        decode_message(AgentAnswer, sent, "agent").raise_error()
    assert type(caught.value) is cls


def test_errors_of_other_modules_arrive_as_the_nearest_known_class():
    assert describe_error(UnavailableError("no meter", "buy one")).name == "MissingError"
    with pytest.raises(MissingError, match="no meter"):
        AgentAnswer(ID, error=describe_error(UnavailableError("no meter", ""))).raise_error()


@pytest.mark.parametrize("name", ["ValueError", "make_printable", "__import__", ""])
def test_foreign_names_of_errors_are_failed_measurements(name):
    with pytest.raises(MeasurementError, match="why"):
        AgentAnswer(ID, error=SentError(name, "why")).raise_error()


def test_long_and_hostile_messages_become_one_short_line():
    error = describe_error(InputError("a\nb\x1b[2J " + "x" * 10_000))
    assert len(error.message) == 2000
    with pytest.raises(JoulecastError) as caught:
        AgentAnswer(ID, error=SentError("InputError", "a\nb\x1b[2J")).raise_error()
    assert str(caught.value) == "a b\\x1b[2J"


def change(**values):
    data = {"protocol": 1, **AgentRequest(ID, "measure", make_trial()).to_dict(), **values}
    return json.dumps({key: value for key, value in data.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "not JSON"),
        (b"\x80\x04K\x01.", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"protocol": 1, "id": NaN}', "NaN"),
        (b"[]", "not a message"),
        (b"{}", "not a message"),
        (change(protocol=2), "version 2 of the protocol"),
        (change(id="../../etc"), "hexadecimal"),
        (change(task="exec"), "task"),
        (change(code="import os"), "no field 'code'"),
        (change(rounds=10**9), "rounds"),
        (change(rounds=0), "rounds"),
        (change(run="x" * 1001), "run of a request"),
        (change(task="idle"), "trial"),
        (change(trial=None), "trial"),
    ],
)
def test_damaged_requests_are_refused(content, part):
    with pytest.raises(InputError, match=part) as caught:
        decode_message(AgentRequest, content, "the client")
    assert len(str(caught.value)) < 300
