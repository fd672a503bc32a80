"""Measure on a device elsewhere, as if it were here.

    RemoteMeasurer ──▶ AgentConnection ──▶ HttpLink   a connection for every request
                       asks again          SshLink    starts the agent, and ends it when closed

A request that got no answer is sent again under the same id, so that the agent measures once,
however often the connection is lost. A measurement may take minutes without a word from the agent;
meanwhile the operating systems of both sides check that the connection is alive.
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
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Protocol

from joulecast.agent.addresses import AgentAddress, parse_address
from joulecast.agent.messages import (
    MOST_ANSWER_BYTES,
    MOST_REQUEST_BYTES,
    AgentAnswer,
    AgentDescription,
    AgentRequest,
    decode_message,
    encode_message,
)
from joulecast.measurer.base import RemoteMeter, RemoteRuntime, TrialMeasurer, make_run
from joulecast.records import Observation, Trial
from joulecast.system.errors import DeviceAwayError, InputError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_CHUNK_BYTES = 1 << 16
# A login shell may print lines before the agent starts.
_MOST_FOREIGN_LINES = 100
_LAST_WORDS_S, _END_S = 1.0, 2.0


@dataclass(frozen=True)
class LinkLimits:
    """How long a client waits."""

    connect_s: float = 10.0
    # A measurement under a slow meter takes many minutes.
    answer_s: float = 1800.0
    # An agent may be restarted meanwhile.
    retry_s: float = 30.0
    # Without a sign of life from the other machine, before a connection counts as lost.
    alive_s: float = 60.0


class AgentSilentError(DeviceAwayError):
    """The agent took a request and did not answer in time: it measures for others, or hangs."""


class Link(Protocol):
    """A way to an agent; once closed, the next request opens it again."""

    def ask(self, content: bytes) -> bytes:
        """Send a request and return the answer.

        Raises:
            DeviceAwayError: The agent cannot be reached, or the connection was lost.
            AgentSilentError: The agent did not answer in time.
        """

    def close(self) -> None: ...


def open_remote_measurer(
    address: str,
    token: str = "",
    *,
    rounds: int = 3,
    device_name: str = "",
    limits: LinkLimits | None = None,
    link: Link | None = None,
) -> RemoteMeasurer:
    """Return a measurer of a device elsewhere; use it in a ``with`` statement.

    ``device_name`` is recorded instead of the device's own name. The address names the link, the
    way to the agent; over ssh there is no token.

    Raises:
        InputError: The address is not one of an agent, or the agent refuses the token.
        DeviceAwayError: The agent does not answer.
    """
    parsed, limits = parse_address(address), limits or LinkLimits()
    if link is None:
        is_ssh = parsed.scheme == "ssh"
        link = SshLink(parsed, limits) if is_ssh else HttpLink(parsed, token, limits)
    connection = AgentConnection(parsed.text, link, limits)
    found = connection.description
    device = replace(found.device, name=device_name or found.device.name)
    return RemoteMeasurer(
        RemoteRuntime(found.runtime, device, found.modes),
        RemoteMeter(found.meter, found.covers, found.provenance, found.is_recorder),
        rounds,
        make_run(),
        version=found.version,
        connection=connection,
    )


@dataclass(frozen=True)
class RemoteMeasurer(TrialMeasurer):
    """A measurer whose device is elsewhere.

    Attributes:
        version: Version of Joulecast on the device.
        make_id: Returns the id of a request for a task and a trial. A client that chooses the same
            ids before and after it was killed gets what was measured meanwhile.
    """

    version: str = ""
    connection: AgentConnection = field(kw_only=True, repr=False)
    make_id: Callable[[str, Trial | None], str] = field(
        default=lambda task, trial: uuid.uuid4().hex
    )

    def __exit__(self, *exc: object) -> None:
        self.connection.close()

    def now(self) -> float:
        return self.connection.now()

    def measure(self, trial: Trial) -> Observation:
        return self._ask("measure", trial)

    def time(self, trial: Trial) -> Observation:
        return self._ask("time", trial)

    def measure_idle(self) -> Observation:
        return self._ask("idle")

    def _ask(self, task: str, trial: Trial | None = None) -> Observation:
        request = AgentRequest(self.make_id(task, trial), task, trial, self.rounds, self.run)
        answer = self.connection.ask(request)
        self.disturbances.update(answer.disturbances)
        observation = answer.take_observation(trial)
        return replace(observation, device=self.runtime.device)


class AgentConnection:
    """Asks an agent, and asks again if the connection was lost."""

    def __init__(self, address: str, link: Link, limits: LinkLimits) -> None:
        """Ask for the description of the device, once: a user waits for it."""
        self.address, self._link, self._limits = address, link, limits
        answer = self._ask_once(AgentRequest(uuid.uuid4().hex, "describe"))
        answer.raise_error()
        if answer.description is None:
            raise InputError(f"{address} does not describe its device: check the address")
        self.description: AgentDescription = answer.description
        # Time that passed on the clock of an agent whose time is virtual, and its last reading.
        self._passed_s, self._clock_s = 0.0, answer.clock_s

    def ask(self, request: AgentRequest) -> AgentAnswer:
        """Return the answer to a request, which is sent again after a lost connection.

        Raises:
            DeviceAwayError: The agent did not come back in time.
            InputError: The request is too large, or the agent refuses the token.
        """
        give_up_s, pause_s = None, _FIRST_PAUSE_S
        while True:
            try:
                answer = self._ask_once(request)
                break
            except AgentSilentError:
                raise
            except DeviceAwayError:
                give_up_s = give_up_s or time.monotonic() + self._limits.retry_s
                if time.monotonic() + pause_s > give_up_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        # The clock of an agent that was started again begins at 0.
        self._passed_s += max(0.0, answer.clock_s - self._clock_s)
        self._clock_s = answer.clock_s
        found, known = answer.observation, self.description
        if found is not None:
            # How much memory is usable may change when the device is started.
            device = replace(known.device, memory_bytes=found.device.memory_bytes)
            names = ("runtime", "meter", "covers", "provenance")
            is_same = all(getattr(found, name) == getattr(known, name) for name in names)
            if found.device != device or not is_same:
                raise DeviceAwayError(
                    f"the agent at {self.address} was started anew with another device, framework, "
                    "power mode or meter: run the same command again"
                )
        return answer

    def now(self) -> float:
        """Return the time on the clock of windows; that of the agent for a simulated device."""
        return self._passed_s if self.description.has_virtual_clock else time.monotonic()

    def close(self) -> None:
        self._link.close()

    def _ask_once(self, request: AgentRequest) -> AgentAnswer:
        content = encode_message(request)
        if len(content) > MOST_REQUEST_BYTES:
            raise InputError(
                f"the trial has {len(content) / 2**20:.0f} MiB, and agents take "
                f"{MOST_REQUEST_BYTES // 2**20} MiB: measure a smaller network"
            )
        answer = decode_message(AgentAnswer, self._link.ask(content), self.address)
        if answer.id not in (request.id, ""):
            raise DeviceAwayError(f"{self.address} answered another request: ask it again")
        return answer


class HttpLink:
    """Requests over HTTP, each with a connection of its own."""

    def __init__(self, address: AgentAddress, token: str, limits: LinkLimits) -> None:
        self._address, self._token, self._limits = address, token, limits

    def ask(self, content: bytes) -> bytes:
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
            try:
                with connection.getresponse() as response:
                    return response.read(MOST_ANSWER_BYTES + 1)
            except TimeoutError as error:
                raise _explain_silence(address, limits) from error
        except (OSError, http.client.HTTPException) as error:
            raise DeviceAwayError(
                f"the agent at {address.text} cannot be reached ({_explain(error)}): check that "
                "it runs there and listens on that address"
            ) from error
        finally:
            connection.close()

    def close(self) -> None:
        pass


class SshLink:
    """Requests over stdin and stdout of an agent that ssh starts."""

    def __init__(self, address: AgentAddress, limits: LinkLimits) -> None:
        self._address, self._limits = address, limits
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, content: bytes) -> bytes:
        if self._process is None:
            self._process = self._start()
        try:
            return self._exchange(self._process, content)
        except (OSError, EOFError) as error:
            is_silent = isinstance(error, TimeoutError)
            words = "" if is_silent else self._read_last_words(self._process) or _explain(error)
            _kill(self._process)
            self.close()
            if is_silent:
                raise _explain_silence(self._address, self._limits) from error
            raise DeviceAwayError(
                f"the agent at {self._address.text} ended ({words}): check that ssh reaches the "
                f"device and can run `{self._address.make_command()}` there"
            ) from error

    def close(self) -> None:
        if self._process is not None:
            self._end()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
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
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the program ends
        try:
            process = subprocess.Popen(
                ["ssh", "-T", *words, *port, host, address.make_command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # An interruption reaches this process only, which then ends the agent.
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise DeviceAwayError(
                f"ssh cannot be started ({_explain(error)}): install it, or use http://"
            ) from error
        # Also if a measurer is never closed, because it only identified a device.
        self._end = weakref.finalize(self, _end_program, process, self._log)
        return process

    def _exchange(self, process: subprocess.Popen[bytes], content: bytes) -> bytes:
        """Send a line and return the next one that can be an answer."""
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(content + b"\n")
        process.stdin.flush()
        give_up_s = time.monotonic() + self._limits.answer_s
        pipe, rest, foreign = process.stdout.fileno(), b"", 0
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

    def _read_last_words(self, process: subprocess.Popen[bytes]) -> str:
        """Return the last line that ssh or the agent wrote to stderr."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS_S)
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip().splitlines()
        return words[-1].strip().removeprefix("joulecast: ")[:300] if words else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program at once, with its children, such as a proxy of ssh."""
    # The number of one that was waited for may belong to another process by now.
    if process.returncode is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_program(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Close the input, which ends an agent; kill one that goes on measuring."""
    for pipe in (process.stdin, process.stdout, log):
        with suppress(OSError):
            pipe.close()  # type: ignore[union-attr]
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S if process.poll() is None else 0)
    _kill(process)


def _explain_silence(address: AgentAddress, limits: LinkLimits) -> AgentSilentError:
    return AgentSilentError(
        f"the agent at {address.text} has not answered for {limits.answer_s:g} s: it measures for "
        "somebody else or hangs; try again later, or start it anew"
    )


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
