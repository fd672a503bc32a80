"""Answer requests over HTTP, one at a time, in the only thread of the process.

    POST / with a JSON body and `Authorization: Bearer TOKEN`

Connections that arrive while a trial is measured wait in the queue of the operating system, so that
nothing runs beside the measurement. The token is checked before anything is read, and the size of
a request before its body. HTTP is not encrypted: where others can listen, use ssh.
"""

from __future__ import annotations

import io
import select
import socket
import socketserver
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

from joulecast.agent.addresses import is_loopback, names_loopback
from joulecast.agent.messages import MOST_REQUEST_BYTES
from joulecast.agent.service import AgentService, refuse_request
from joulecast.agent.tokens import are_equal_secrets
from joulecast.errors import InputError

# A request has to arrive within this time, or others would wait for a client that sends nothing.
_REQUEST_S = 20.0
_SAME_TOKEN = "give both the same one, by JOULECAST_TOKEN or --token-file"


def serve_http(
    service: AgentService,
    listen: tuple[str, int],
    token: str = "",
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Answer requests until the device is lost.

    Args:
        service: Answers requests.
        listen: Host and port.
        token: The shared secret; only an agent that this machine alone can reach needs none.
        on_ready: Called with the address of the agent once it listens.

    Raises:
        InputError: Others could reach the agent without a token, or the port cannot be used.
    """
    host, port = listen
    if not token and not is_loopback(host):
        raise InputError(
            f"an agent on {host} would measure for everybody who can reach it: set "
            "JOULECAST_TOKEN or give --token-file, or listen on 127.0.0.1"
        )
    with _open_server(service, host, port, token) as server:
        if on_ready is not None:
            shown = f"[{host}]" if ":" in host else host
            on_ready(f"http://{shown}:{server.server_address[1]}")
        while not service.is_lost:
            server.handle_request()


class AgentServer(socketserver.TCPServer):
    """A server with one thread that does not wake while it waits."""

    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, service: AgentService, host: str, port: int, token: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.service = service
        self.token = token
        super().__init__((host, port), AgentHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that breaks off gets its answer when it asks again."""


class AgentHandler(BaseHTTPRequestHandler):
    """Checks one HTTP request and answers it."""

    timeout = _REQUEST_S
    server_version = "joulecast"
    sys_version = ""

    def setup(self) -> None:
        """Limit how long the whole request may take."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(DeadlineReader(self.connection, _REQUEST_S))

    def do_POST(self) -> None:
        """Answer a request."""
        server = cast(AgentServer, self.server)
        refusal = self._find_refusal(server.token)
        if refusal is not None:
            status, message = refusal
            self._send(status, refuse_request(InputError(message)))
            return
        content = self.rfile.read(int(self.headers["Content-Length"]))
        # A request whose sender gave up would only keep others waiting.
        if not _has_hung_up(self.connection):
            self._send(200, server.service.answer(content))

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: it would wake the disk."""

    def _find_refusal(self, token: str) -> tuple[int, str] | None:
        """Return status and reason for a request that is not read; None for a good one."""
        given = self.headers.get("Authorization", "")
        if token and not are_equal_secrets(given, f"Bearer {token}"):
            return 401, f"the agent refuses the token: {_SAME_TOKEN}"
        # Without a token, a web page must not reach an agent on its reader's machine: its host
        # would be another one, or the browser would refuse this type.
        if not token and not names_loopback(self.headers.get("Host", "")):
            return 403, "an agent without a token answers this machine only: give it a token"
        if self.headers.get_content_type() != "application/json":
            return 415, "the agent takes application/json only"
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()) or "Transfer-Encoding" in self.headers:
            return 411, "the request does not say how long it is"
        if len(length) > 15 or int(length) > MOST_REQUEST_BYTES:
            return 413, f"the request is larger than {MOST_REQUEST_BYTES // 2**20} MiB"
        return None

    def _send(self, status: int, content: bytes) -> None:
        self.connection.settimeout(_REQUEST_S)
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)


class DeadlineReader(io.RawIOBase):
    """Reads a connection until a moment, however slowly its bytes arrive."""

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
        self._connection = connection
        self._end_s = time.monotonic() + limit_s

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has arrived.

        Raises:
            TimeoutError: The time is over.
        """
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


def _open_server(service: AgentService, host: str, port: int, token: str) -> AgentServer:
    try:
        return AgentServer(service, host, port, token)
    except OSError as error:
        raise InputError(
            f"the agent cannot listen on {host}:{port} ({error.strerror}): give another --listen"
        ) from error


def _has_hung_up(connection: socket.socket) -> bool:
    """Return whether the client has closed its connection."""
    readable, _, _ = select.select([connection], [], [], 0)
    if not readable:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True
