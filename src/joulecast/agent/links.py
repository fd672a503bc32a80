"""Connections of a client to an agent: they send one request and return its answer.

``HttpLink`` opens a connection for every request. ``SshLink`` starts the agent over ssh and keeps
it until the link is closed. A measurement may take minutes without a word from the agent; meanwhile
the operating systems of both sides check that the connection is alive.
"""

from __future__ import annotations

import http.client
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from joulecast.agent.addresses import AgentAddress
from joulecast.agent.messages import MOST_ANSWER_BYTES
from joulecast.errors import DeviceAwayError

_CHUNK_BYTES = 1 << 16
# A login shell may print lines before the agent starts.
_MOST_FOREIGN_LINES = 100
_LAST_WORDS_S, _END_S = 1.0, 2.0


@dataclass(frozen=True)
class LinkLimits:
    """How long a client waits.

    Attributes:
        connect_s: For a connection.
        answer_s: For an answer: a measurement under a slow meter takes many minutes.
        retry_s: After a lost connection, until it is given up; an agent may be restarted meanwhile.
        alive_s: Without a sign of life from the other machine, before a connection counts as lost.
    """

    connect_s: float = 10.0
    answer_s: float = 1800.0
    retry_s: float = 30.0
    alive_s: float = 60.0


class AgentSilentError(DeviceAwayError):
    """The agent took a request and did not answer in time: it measures for others, or hangs."""


class Link(Protocol):
    """A way to an agent."""

    def ask(self, content: bytes) -> bytes:
        """Send a request and return the answer.

        Raises:
            DeviceAwayError: The agent cannot be reached, or the connection was lost.
            AgentSilentError: The agent did not answer in time.
        """

    def close(self) -> None:
        """Close the connection; the next request opens it again."""


class HttpLink:
    """Requests over HTTP, each with a connection of its own."""

    def __init__(self, address: AgentAddress, token: str, limits: LinkLimits) -> None:
        self._address = address
        self._token = token
        self._limits = limits

    def ask(self, content: bytes) -> bytes:
        """Send a request and return the answer."""
        limits, address = self._limits, self._address
        is_secure = address.scheme == "https"
        make = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        connection = make(address.host, address.port, timeout=limits.connect_s)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.connect()
            _keep_alive(connection.sock, limits.alive_s)
            connection.sock.settimeout(limits.answer_s)
            connection.request("POST", "/", content, headers)
            return _read_response(connection, address, limits)
        except (OSError, http.client.HTTPException) as error:
            raise DeviceAwayError(
                f"the agent at {address.text} cannot be reached ({_explain(error)}): check that "
                "it runs there and listens on that address"
            ) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Do nothing: every request has its own connection."""


class SshLink:
    """Requests over stdin and stdout of an agent that ssh starts."""

    def __init__(self, address: AgentAddress, limits: LinkLimits) -> None:
        self._address = address
        self._limits = limits
        self._program: _Program | None = None

    def ask(self, content: bytes) -> bytes:
        """Send a request and return the answer; start the agent if it does not run."""
        if self._program is None:
            self._program = _Program(self._make_command())
            # Also where a measurer is never closed, because it only identified a device.
            self._end = weakref.finalize(self, self._program.end)
        try:
            return self._program.ask(content, self._limits.answer_s)
        except TimeoutError as error:
            self._program.kill()
            self.close()
            raise _explain_silence(self._address, self._limits) from error
        except (OSError, EOFError) as error:
            words = self._program.read_last_words() or _explain(error)
            self._program.kill()
            self.close()
            raise DeviceAwayError(
                f"the agent at {self._address.text} ended ({words}): check that ssh reaches the "
                f"device and can run `{self._address.make_command()}` there"
            ) from error

    def close(self) -> None:
        """End the agent."""
        if self._program is not None:
            self._end()
            self._program = None

    def _make_command(self) -> list[str]:
        address, limits = self._address, self._limits
        options = {
            # A question for a password would wait for ever.
            "BatchMode": "yes",
            "ConnectTimeout": f"{limits.connect_s:.0f}",
            "ServerAliveInterval": f"{max(1.0, limits.alive_s / 3):.0f}",
            "ServerAliveCountMax": "3",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        port = [] if address.port is None else ["-p", str(address.port)]
        host = f"{address.user}@{address.host}" if address.user else address.host
        return ["ssh", "-T", *words, *port, host, address.make_command()]


class _Program:
    """A running ssh, and what it writes to stderr."""

    def __init__(self, command: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the program ends
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # An interruption reaches this process only, which then ends the agent.
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise DeviceAwayError(
                f"{command[0]} cannot be started ({_explain(error)}): install it, or use http://"
            ) from error

    def ask(self, content: bytes, wait_s: float) -> bytes:
        """Send a line and return the next one that can be an answer.

        Raises:
            OSError: The program ended.
            EOFError: The program ended, or printed something else.
            TimeoutError: It was silent for too long.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(content + b"\n")
        self._process.stdin.flush()
        give_up_s = time.monotonic() + wait_s
        pipe, rest, foreign = self._process.stdout.fileno(), b"", 0
        while len(rest) <= MOST_ANSWER_BYTES and foreign < _MOST_FOREIGN_LINES:
            if not select.select([pipe], [], [], max(0.0, give_up_s - time.monotonic()))[0]:
                raise TimeoutError
            chunk = os.read(pipe, _CHUNK_BYTES)
            if not chunk:
                raise EOFError("connection closed")
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"{"):
                    return line
                foreign += 1
        raise EOFError("it prints something else")

    def read_last_words(self) -> str:
        """Return the last line that ssh or the agent wrote to stderr."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_S)
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip().splitlines()
        return words[-1].strip().removeprefix("joulecast: ")[:300] if words else ""

    def kill(self) -> None:
        """End the program at once, with its children, such as a proxy of ssh."""
        # The number of one that was waited for may belong to another process by now.
        if self._process.returncode is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def end(self) -> None:
        """Close the input, which ends an agent; kill one that goes on measuring."""
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S if self._process.poll() is None else 0)
        self.kill()


def _read_response(
    connection: http.client.HTTPConnection, address: AgentAddress, limits: LinkLimits
) -> bytes:
    try:
        with connection.getresponse() as response:
            return response.read(MOST_ANSWER_BYTES + 1)
    except TimeoutError as error:
        raise _explain_silence(address, limits) from error


def _explain_silence(address: AgentAddress, limits: LinkLimits) -> AgentSilentError:
    return AgentSilentError(
        f"the agent at {address.text} has not answered for {limits.answer_s:g} s: it measures for "
        "somebody else or hangs; try again later, or start it anew"
    )


def make_link(address: AgentAddress, token: str, limits: LinkLimits) -> Link:
    """Return the link to an agent."""
    if address.scheme == "ssh":
        return SshLink(address, limits)
    return HttpLink(address, token, limits)


def _keep_alive(connection: socket.socket, alive_s: float) -> None:
    """Let the operating system check a silent connection, so that the agent need not."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe_s = max(1, int(alive_s / 4))
    for name, value in (("TCP_KEEPIDLE", probe_s), ("TCP_KEEPINTVL", probe_s), ("TCP_KEEPCNT", 3)):
        # Not on every system.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _explain(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
