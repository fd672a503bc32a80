"""Addresses of agents, and what is no address."""

import pytest

from joulecast.agent.addresses import is_loopback, is_remote, parse_address, parse_listen
from joulecast.errors import InputError


def test_http_addresses_have_the_usual_port():
    assert parse_address("http://board").port == 8377
    found = parse_address("https://[::1]:9000/")
    assert (found.scheme, found.host, found.port) == ("https", "::1", 9000)


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
    ],
)
def test_other_texts_are_refused(text, part):
    with pytest.raises(InputError, match=part):
        parse_address(text)


@pytest.mark.parametrize(
    "text", ["http://me:secret@board", "http://secret@board", "ssh://a:secret@b"]
)
def test_addresses_with_secrets_are_refused_without_showing_them(text):
    with pytest.raises(InputError, match="JOULECAST_TOKEN") as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


def test_only_addresses_of_agents_are_remote():
    assert all(map(is_remote, ("http://a", "HTTPS://a", "ssh://a")))
    assert not any(map(is_remote, ("cpu", "cuda:0", "mnn:cpu", "simulated:7", "http")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:8377", ("127.0.0.1", 8377)), ("[::]:1", ("::", 1)), ("board:0", ("board", 0))],
)
def test_listen_has_a_host_and_a_port(text, expected):
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "8377", "127.0.0.1", ":8377", "a:b", "a:99999", "a:٣"])
def test_other_values_of_listen_are_refused(text):
    with pytest.raises(InputError, match=r"like 127\.0\.0\.1:8377"):
        parse_listen(text)


def test_loopback_is_what_only_this_machine_reaches():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.2", "board", "", "127.0.0.1.a")))
