"""Parse addresses of agents.

    http://board:8377                        an agent that listens there; https:// behind a proxy
    ssh://user@board                         started over ssh: joulecast agent --stdio
    ssh://user@board/agent.pyz?on=cuda:0     started over ssh: python3 agent.pyz --stdio --on cuda:0

A path is relative to the home folder of the user there; ``//opt/agent.pyz`` is absolute. The part
after the question mark holds options of the agent: ``on``, ``meter`` and ``device-name``.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from joulecast.errors import InputError

DEFAULT_PORT = 8377
DEFAULT_LISTEN = f"127.0.0.1:{DEFAULT_PORT}"
_SCHEMES = ("http", "https", "ssh")
_OPTIONS = ("on", "meter", "device-name")
# Nothing that ssh or a shell could take for an option or a command.
_HOST = re.compile(r"[A-Za-z0-9_:%](?:[A-Za-z0-9_.:%-]*[A-Za-z0-9_])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class AgentAddress:
    """Where an agent is.

    Attributes:
        text: The address as it was given.
        scheme: ``http``, ``https`` or ``ssh``.
        port: None for ssh's own.
        program: For ssh: path of the agent's zipapp there; empty where Joulecast is installed.
        options: For ssh: options of the agent.
    """

    text: str
    scheme: str
    host: str
    port: int | None
    user: str
    program: str
    options: Mapping[str, str]

    def make_command(self) -> str:
        """Return the shell command that starts the agent on the device."""
        start = ["python3", self.program] if self.program else ["joulecast", "agent"]
        given = [word for name, value in self.options.items() for word in (f"--{name}", value)]
        return shlex.join([*start, "--stdio", *given])


def is_remote(on: str) -> bool:
    """Return whether a device is named by the address of its agent."""
    return on.lower().startswith(tuple(f"{scheme}://" for scheme in _SCHEMES))


def parse_address(text: str) -> AgentAddress:
    """Return the parts of an address.

    Raises:
        InputError: It is not the address of an agent, or contains a password.
    """
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _refuse(text, str(error)) from error
    if parts.scheme not in _SCHEMES:
        raise _refuse(text, "it does not begin with http:// or ssh://")
    if parts.password is not None or (parts.username and parts.scheme != "ssh"):
        raise InputError(
            "an address must not contain a token or a password, which other users could see: set "
            "JOULECAST_TOKEN, or JOULECAST_TOKEN_FILE to the path of a file"
        )
    if not _HOST.fullmatch(host) or (parts.username and not _USER.fullmatch(parts.username)):
        raise _refuse(text, "it names no host")
    if parts.scheme == "ssh":
        program, options = _parse_program(parts), _parse_options(text, parts)
        return AgentAddress(text, "ssh", host, port, parts.username or "", program, options)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _refuse(text, "nothing follows its host and port")
    return AgentAddress(text, parts.scheme, host, port or DEFAULT_PORT, "", "", {})


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of ``127.0.0.1:8377`` or ``[::1]:8377``; port 0 is any free one.

    Raises:
        InputError: It is not a host and a port.
    """
    host, colon, port = text.strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 2**16):
        raise InputError(f"--listen is {text!r}: give an address and a port, like 127.0.0.1:8377")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(host: str) -> bool:
    """Return whether the Host header of a request names this machine, with or without a port."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _parse_program(parts: SplitResult) -> str:
    program = unquote(parts.path[1:])
    # A leading dash would be an option of Python.
    return f"./{program}" if program.startswith("-") else program


def _parse_options(text: str, parts: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise _refuse(text, f"an agent has no option {name!r}, only {', '.join(_OPTIONS)}")
    return options


def _refuse(text: str, reason: str) -> InputError:
    return InputError(
        f"{text!r} is not the address of an agent ({reason}): give one like http://board:8377 or "
        "ssh://user@board"
    )
