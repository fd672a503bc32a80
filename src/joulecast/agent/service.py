"""Answer requests over HTTP or stdin: check them, measure, and remember the last answers.

    content ─▶ request ─▶ answered before? ─▶ does it fit? ─▶ lock the device ─▶ measure ─▶ answer
                              └── the same answer

A client asks again under the same id when it lost the connection. Whatever was measured meanwhile
is still here, so nothing is lost, and nothing is measured twice.

All runs in the only thread of the process. Connections that arrive while a trial is measured wait
in the queue of the operating system, so that nothing runs beside the measurement. The token is
checked before anything is read, and the size of a request before its body. HTTP is not encrypted:
where others can listen, use ssh.
"""

from __future__ import annotations

import io
import socket
import socketserver
import sys
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from importlib.metadata import PackageNotFoundError, version
from typing import Any, BinaryIO, cast

from joulecast.agent.addresses import are_equal_secrets, is_loopback, names_loopback
from joulecast.agent.messages import (
    MOST_REQUEST_BYTES,
    AgentAnswer,
    AgentDescription,
    AgentRequest,
    decode_message,
    describe_error,
    encode_message,
)
from joulecast.devices.detect import detect_device, find_free_memory
from joulecast.measurer.base import IDLE_TRIAL
from joulecast.measurer.device_lock import hold_device, is_device_lost
from joulecast.measurer.local_devices import name_lock, open_local_measurer
from joulecast.measurer.windows import IdleChecks
from joulecast.operators import check_observed, peak_memory
from joulecast.records import Device, Observation, Trial
from joulecast.runtimes import find_hardware
from joulecast.system.errors import (
    DeviceAwayError,
    InputError,
    JoulecastError,
    MeasurementError,
    MeterLostError,
    OutOfMemoryError,
)
from joulecast.system.files import first_line

# Answers have less than a kilobyte each, and clients ask one request after the other.
_REMEMBERED = 64


class AgentService:
    """Answers requests about one device, one at a time.

    Attributes:
        is_lost: The process can no longer use the device: it has to be started anew.
    """

    def __init__(
        self, on: str, meter: str = "auto", device_name: str = "", lock_wait_s: float = 120.0
    ) -> None:
        """Open runtime and meter of a device.

        Another process of this machine may still measure for ``lock_wait_s``, such as an agent
        whose client is gone.
        """
        self._measurer = open_local_measurer(on, meter, device_name=device_name, allows_later=True)
        self._on, self._hardware = on, find_hardware(on)
        self._lock_name, self._lock_wait_s = name_lock(on), lock_wait_s
        self._answers: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()
        self._is_open = self.is_lost = False

    def __enter__(self) -> AgentService:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._is_open:
            self._is_open = False
            self._measurer.meter.close()

    def describe(self) -> AgentDescription:
        """Return what clients need to know about the device, in its present power mode."""
        self._update_power_mode()
        runtime, meter = self._measurer.runtime, self._measurer.meter
        installed = ""
        with suppress(PackageNotFoundError):
            installed = version("joulecast")
        return AgentDescription(
            runtime.device,
            runtime.name,
            runtime.modes,
            meter.name,
            meter.covers,
            meter.provenance,
            meter.is_recorder,
            has_virtual_clock=self._measurer.clock.now is not time.monotonic,
            version=installed,
        )

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a request; errors are answers too."""
        try:
            request = decode_message(AgentRequest, content, "the client")
        except JoulecastError as error:
            return refuse_request(error)
        # With the trial: whoever reuses an id must not get the observation of another trial.
        name = (request.id, request.task, request.trial.key if request.trial else "")
        if name in self._answers:
            return self._answers[name]
        answer = self._answer(request)
        encoded = encode_message(answer)
        # What failed may succeed when it is asked for again.
        if answer.observation is not None:
            self._answers[name] = encoded
            if len(self._answers) > _REMEMBERED:
                self._answers.popitem(last=False)
        return encoded

    def _update_power_mode(self) -> None:
        """Look up the power mode, which may have been changed since the agent was started."""
        if self._hardware is None:
            return
        runtime, mode = self._measurer.runtime, detect_device(self._hardware).power_mode
        if mode != runtime.device.power_mode:
            runtime.device = replace(runtime.device, power_mode=mode)
            # What was known about the idle device held in the other mode.
            self._measurer = replace(self._measurer, idle=IdleChecks())

    def _answer(self, request: AgentRequest) -> AgentAnswer:
        # Each answer counts its own disturbances; what is known about the idle device stays.
        disturbances: Counter[str] = Counter()
        found: dict[str, Any] = {}
        try:
            if request.task == "describe":
                found["description"] = self.describe()
            else:
                # The client knows the trial.
                seen = replace(self._measure(request, disturbances), trial=IDLE_TRIAL)
                found["observation"] = seen
        except Exception as error:
            self.is_lost = is_device_lost(error)
            found["error"] = describe_error(_convert_error(error))
        clock_s = max(0.0, self._measurer.now())
        return AgentAnswer(request.id, **found, disturbances=dict(disturbances), clock_s=clock_s)

    def _measure(self, request: AgentRequest, disturbances: Counter[str]) -> Observation:
        self._update_power_mode()
        measurer = replace(
            self._measurer, run=request.run, rounds=request.rounds, disturbances=disturbances
        )
        if request.trial is not None:
            check_fits(request.trial, measurer.runtime.device)
        with ExitStack() as stack:
            try:
                lock = hold_device(self._lock_name, self._on, wait_s=self._lock_wait_s)
                stack.enter_context(lock)
            except MeasurementError as error:
                raise DeviceAwayError(str(error)) from error
            try:
                if not self._is_open:
                    try:
                        measurer.meter.open()
                    except MeasurementError as error:
                        raise MeterLostError(str(error)) from error
                    self._is_open = True
                if request.trial is None:
                    return measurer.measure_idle()
                measure = measurer.measure if request.task == "measure" else measurer.time
                return measure(request.trial)
            except MeterLostError:
                # It is opened again for the next request: it may be plugged in by then.
                self.__exit__()
                raise


def check_fits(trial: Trial, device: Device) -> None:
    """Raise an error for a trial that cannot be run, before anything is built.

    Raises:
        InputError: A layer has impossible sizes.
        OutOfMemoryError: Weights, gradients and activations alone exceed the free memory.
    """
    check_observed(trial.network)
    needed = peak_memory(trial.network, trial.setup) * trial.execution.copies
    free = find_free_memory(device)
    if free and needed > free:
        raise OutOfMemoryError(
            f"{trial.network.name or 'the trial'} needs {needed / 2**20:,.0f} MiB, and "
            f"{device.name} has {free / 2**20:,.0f} MiB free: use a smaller batch or a narrower "
            "network"
        )


def refuse_request(error: JoulecastError) -> bytes:
    """Return the answer to a request that cannot be read."""
    return encode_message(AgentAnswer("", error=describe_error(error)))


def _convert_error(error: Exception) -> JoulecastError:
    """Return an error as one of Joulecast's; a bug is also shown where the agent was started."""
    if isinstance(error, JoulecastError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemoryError("the agent ran out of memory: use a smaller batch or network")
    # Frameworks raise RuntimeError for what they cannot do.
    if not isinstance(error, RuntimeError):
        traceback.print_exception(error, file=sys.stderr)
    return MeasurementError(f"{type(error).__name__}: {first_line(error)}")


# A request has to arrive within this time, or others would wait for a client that sends nothing.
_REQUEST_S = 20.0


def serve_http(
    service: AgentService,
    listen: tuple[str, int],
    token: str = "",
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Answer requests until the device is lost; ``on_ready`` gets the address of the agent.

    Raises:
        InputError: Others could reach the agent without a token, or the port cannot be used.
    """
    host, port = listen
    if not token and not is_loopback(host):
        raise InputError(
            f"an agent on {host} would measure for everybody who can reach it: set "
            "JOULECAST_TOKEN or give --token-file, or listen on 127.0.0.1"
        )
    try:
        server = AgentServer(service, host, port, token)
    except OSError as error:
        raise InputError(
            f"the agent cannot listen on {host}:{port} ({error.strerror}): give another --listen"
        ) from error
    with server:
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
        self.service, self.token = service, token
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
        server = cast(AgentServer, self.server)
        if refusal := self._find_refusal(server.token):
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
            advice = "give both the same JOULECAST_TOKEN, or the agent's to `joulecast agent "
            advice += "--token-file FILE`"
            return 401, f"the agent refuses the token: {advice}"
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
        self._connection, self._end_s = connection, time.monotonic() + limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


def _has_hung_up(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def serve_stdio(service: AgentService, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests, one per line, until the client is gone or the device is lost."""
    limit = MOST_REQUEST_BYTES // 2**20
    too_large = InputError(f"the request is larger than {limit} MiB, or incomplete")
    # If the client is gone, nobody is left to tell.
    with suppress(BrokenPipeError):
        while line := requests.readline(MOST_REQUEST_BYTES + 1):
            is_whole = line.endswith(b"\n")
            answer = service.answer(line) if is_whole else refuse_request(too_large)
            answers.write(answer + b"\n")
            answers.flush()
            # What follows a line that is too long is not the start of another.
            if service.is_lost or not is_whole:
                return
