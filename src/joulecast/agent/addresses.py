"""Parse addresses of agents, and read the token that an agent shares with its clients.

    http://board:8377                        an agent that listens there; https:// behind a proxy
    ssh://user@board                         started over ssh: joulecast agent --stdio
    ssh://user@board/agent.pyz?on=cuda:0     started over ssh: python3 agent.pyz --stdio --on cuda:0

A path is relative to the home folder of the user there; ``//opt/agent.pyz`` is absolute. The part
after the question mark holds options of the agent: ``on``, ``meter`` and ``device-name``.

A token comes from a file or from the environment, never from an address or the command line: every
user of a machine can read the arguments of its processes.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from joulecast.system.errors import InputError
from joulecast.system.files import read_limited

DEFAULT_PORT = 8377
DEFAULT_LISTEN = f"127.0.0.1:{DEFAULT_PORT}"
TOKEN, TOKEN_FILE = "JOULECAST_TOKEN", "JOULECAST_TOKEN_FILE"
_SCHEMES = ("http", "https", "ssh")
_OPTIONS = ("on", "meter", "device-name")
# Nothing that ssh or a shell could take for an option or a command.
_HOST = re.compile(r"[A-Za-z0-9_:%](?:[A-Za-z0-9_.:%-]*[A-Za-z0-9_])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# What an HTTP header can carry, and too long to be guessed.
_TOKEN_FORM = re.compile(r"[!-~]{16,1024}")
_MOST_TOKEN_BYTES = 4096


@dataclass(frozen=True)
class AgentAddress:
    """Where an agent is; ``text`` is the address as it was given.

    Attributes:
        port: None for the default port of ssh.
        program: For ssh: path of the agent's zipapp there; empty if Joulecast is installed.
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

    def refuse(reason: str) -> InputError:
        return InputError(
            f"{text!r} is not the address of an agent ({reason}): give one like http://board:8377 "
            "or ssh://user@board"
        )

    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise refuse(str(error)) from error
    if parts.scheme not in _SCHEMES:
        raise refuse("it does not begin with http:// or ssh://")
    if parts.password is not None or (parts.username and parts.scheme != "ssh"):
        raise InputError(
            "an address must not contain a token or a password, which other users could see: set "
            f"{TOKEN}, or {TOKEN_FILE} to the path of a file"
        )
    if not _HOST.fullmatch(host) or (parts.username and not _USER.fullmatch(parts.username)):
        raise refuse("it names no host")
    if parts.scheme != "ssh":
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise refuse("nothing follows its host and port")
        return AgentAddress(text, parts.scheme, host, port or DEFAULT_PORT, "", "", {})
    program = unquote(parts.path[1:])
    if program.startswith("-"):
        # A leading dash would be an option of Python.
        program = f"./{program}"
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise refuse(f"an agent has no option {name!r}, only {', '.join(_OPTIONS)}")
    return AgentAddress(text, "ssh", host, port, parts.username or "", program, options)


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


def read_token(file: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """Return the token in a file, else that of the environment; empty if there is none.

    Raises:
        InputError: The file cannot be read, others can read it, or its content is not a token.
    """
    place = file or environ.get(TOKEN_FILE, "")
    if place:
        path = Path(place)
        token = read_limited(path, _MOST_TOKEN_BYTES).decode("ascii", "replace").strip()
        if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InputError(f"other users can read the token in {place}: run chmod 600 {place}")
    else:
        place, token = TOKEN, environ.get(TOKEN, "").strip()
        if not token:
            return ""
    # Without the token itself, which a message must not contain.
    if not _TOKEN_FORM.fullmatch(token):
        raise InputError(
            f"{place} holds no token, which has 16 to 1024 characters without spaces: make one "
            'with python3 -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return token


def are_equal_secrets(one: str, other: str) -> bool:
    """Compare two texts in a time that does not tell how much of them is equal."""
    left, right = (text.encode("utf-8", "surrogateescape") for text in (one, other))
    return hmac.compare_digest(left, right)
