"""Addresses, tokens, requests and answers: whatever is damaged or hostile is refused."""

import json
from dataclasses import replace

import pytest

from agent_processes import TOKEN, make_trial
from joulecast.agent.addresses import (
    is_loopback,
    is_remote,
    names_loopback,
    parse_address,
    parse_listen,
    read_token,
)
from joulecast.agent.messages import (
    AgentAnswer,
    AgentRequest,
    SentError,
    decode_message,
    describe_error,
    encode_message,
)
from joulecast.measurer.base import IDLE_TRIAL
from joulecast.meters import UnavailableError
from joulecast.records import Device, Observation
from joulecast.system import errors
from joulecast.system.errors import InputError, MeasurementError, MissingError

ID = "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ssh://board", "joulecast agent --stdio"),
        ("ssh://pi@board:2222/agent.pyz", "python3 agent.pyz --stdio"),
        ("ssh://board//opt/agent.pyz", "python3 /opt/agent.pyz --stdio"),
        ("ssh://board?on=cuda:0&meter=hwmon", "joulecast agent --stdio --on cuda:0 --meter hwmon"),
        ("ssh://board/my%20agent.pyz", "python3 'my agent.pyz' --stdio"),
        ("ssh://board/a.pyz;reboot", "python3 'a.pyz;reboot' --stdio"),
        ("ssh://board?on=cpu;reboot", "joulecast agent --stdio --on 'cpu;reboot'"),
        ("ssh://board/-c", "python3 ./-c --stdio"),
    ],
)
def test_ssh_starts_the_agent_and_nothing_else(text, command):
    assert parse_address(text).make_command() == command


def test_http_addresses_have_a_default_port():
    assert parse_address("http://board").port == 8377
    found = parse_address("https://[::1]:9000/")
    assert (found.scheme, found.host, found.port) == ("https", "::1", 9000)
    assert all(map(is_remote, ("http://a", "HTTPS://a", "ssh://a")))
    assert not any(map(is_remote, ("cpu", "cuda:0", "mnn:cpu", "simulated:7", "http")))
    assert parse_listen("[::]:1") == ("::", 1) and parse_listen("board:0") == ("board", 0)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("board:8377", "does not begin"),
        ("ftp://board", "does not begin"),
        ("http://", "no host"),
        ("http://board:99999", "ange"),
        ("http://board/path", "nothing follows"),
        ("ssh://-oProxyCommand=reboot/", "no host"),
        ("ssh://-l@board", "no host"),
        ("ssh://board?listen=0.0.0.0:1", "no option 'listen'"),
        ("http://me:secret@board", "JOULECAST_TOKEN"),
        ("http://secret@board", "JOULECAST_TOKEN"),
        ("ssh://a:secret@b", "JOULECAST_TOKEN"),
    ],
)
def test_other_addresses_are_refused_without_showing_secrets(text, part):
    with pytest.raises(InputError, match=part) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "8377", "127.0.0.1", ":8377", "a:b", "a:99999", "a:٣"])
def test_other_values_of_listen_are_refused(text):
    with pytest.raises(InputError, match="--listen"):
        parse_listen(text)


def test_loopback_is_what_only_this_machine_reaches():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.2", "board", "", "127.0.0.1.a")))
    assert names_loopback("localhost:80") and not any(map(names_loopback, ("evil.example", "[")))


def test_token_is_that_of_the_file_then_of_the_environment(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert read_token(str(file), {"JOULECAST_TOKEN": "x" * 20}) == TOKEN
    assert read_token("", {"JOULECAST_TOKEN_FILE": str(file)}) == TOKEN
    assert read_token("", {"JOULECAST_TOKEN": TOKEN}) == TOKEN
    assert read_token("", {}) == ""
    file.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600") as caught:
        read_token(str(file), {})
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("content", ["short", "with spaces in the middle", "x" * 1025, "ü" * 20])
def test_other_contents_are_not_tokens(content):
    with pytest.raises(InputError, match="JOULECAST_TOKEN") as caught:
        read_token("", {"JOULECAST_TOKEN": content})
    assert content not in str(caught.value)


def test_messages_survive_the_journey():
    request = AgentRequest(ID, "measure", make_trial(), rounds=5, run="run")
    assert decode_message(AgentRequest, encode_message(request), "client") == request
    seen = Observation(make_trial(), 1.0, duration_s=0.5, device=Device("board"), run="run")
    sent = encode_message(
        AgentAnswer(ID, observation=replace(seen, trial=IDLE_TRIAL), disturbances={"gap": 2})
    )
    assert len(sent) < 1000
    answer = decode_message(AgentAnswer, sent, "agent")
    assert answer.take_observation(make_trial()) == seen and answer.disturbances == {"gap": 2}


@pytest.mark.parametrize(
    "cls", [one for one in vars(errors).values() if isinstance(one, type)], ids=lambda c: c.__name__
)
def test_every_error_arrives_as_itself(cls):
    sent = encode_message(AgentAnswer(ID, error=describe_error(cls("what to do"))))
    with pytest.raises(cls, match="what to do") as caught:
        decode_message(AgentAnswer, sent, "agent").raise_error()
    assert type(caught.value) is cls


def test_other_errors_arrive_as_the_nearest_class_in_one_short_line():
    with pytest.raises(MissingError, match="no meter"):
        AgentAnswer(ID, error=describe_error(UnavailableError("no meter", ""))).raise_error()
    for name in ("ValueError", "make_printable", "__import__", ""):
        with pytest.raises(MeasurementError) as caught:
            AgentAnswer(ID, error=SentError(name, "a\nb\x1b[2J")).raise_error()
        assert str(caught.value) == "a b\\x1b[2J"
    assert len(describe_error(InputError("x" * 10_000)).message) == 2000


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
