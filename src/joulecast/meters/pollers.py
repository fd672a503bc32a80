"""Poll an instrument in a process, which keeps what it sees while a window is open.

    meter ── open, begin, end ──▶ python -m joulecast.meters.nvml GPU
          ◀─ one answer each ────

A poller is a separate process, because in the training process a poll would wait for the
interpreter's lock while kernels are issued. It answers every request in one line of JSON:

    1 open     answer 1 [INTERVAL, SOURCE]     SOURCE updates about every INTERVAL seconds
    2 begin    answer 2 null                   events are kept from now on
    3 end      answer 3 [[TIME, …], …]         all events until now: the fields of a named tuple
    4 end      answer 4 []                     the rest of many events, until none is left
               error MESSAGE                   it cannot continue

Other lines are messages of libraries; the last one is quoted if the process ends. It ends when its
standard input closes or its parent has ended.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from joulecast.meters.base import GuardedMeter, Reading, UnavailableError
from joulecast.system.errors import JoulecastError, MeasurementError

_STOP_S = 2.0
_CHUNK_BYTES = 1 << 16
# A window of days has millions of events, and writing all of them at once takes too long.
_CHUNK_EVENTS = 10_000

Event = TypeVar("Event", bound=tuple[Any, ...])


class PollerProcess:
    """A poller in a separate process: ``python -m MODULE ARGUMENT``.

    Only one thread may ask at a time, and only the process that started it.
    """

    def __init__(self, module: str, argument: str) -> None:
        # A new interpreter must import what this one can, but nothing from the working directory
        # that this one does not.
        home = str(Path(__file__).resolve().parents[2])
        paths = [home, *(str(Path(entry or ".").resolve()) for entry in sys.path)]
        path = os.pathsep.join(dict.fromkeys(paths))
        # In a new session: Ctrl-C is for the training process, which stops this one.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._owner = os.getpid()
        self._asked = 0
        self._unread = b""
        self._last_line = "no message"

    def ask(self, request: str, limit_s: float) -> Any:
        """Return the answer, or raise MeasurementError if none comes within some seconds."""
        if os.getpid() != self._owner:
            # After a fork both processes hold the pipes, and would read each other's answers.
            raise MeasurementError("belongs to another process")
        until_s = time.monotonic() + limit_s
        self._asked += 1
        # The answer to an earlier request, for which nobody waited, is skipped.
        wanted = f"answer {self._asked} "
        # Why a process has ended is in its last lines.
        with suppress(BrokenPipeError):
            self._requests.write(f"{self._asked} {request}\n".encode())
        try:
            while line := self._read_line(until_s):
                if line.startswith(wanted):
                    return json.loads(line[len(wanted) :])
                if line.strip() and not line.startswith("answer "):
                    self._last_line = line.strip().removeprefix("error ")
        except TimeoutError:
            raise MeasurementError(f"has not responded for {limit_s:g} s") from None
        raise MeasurementError(f"has ended ({self._last_line})")

    def _read_line(self, until_s: float) -> str:
        """Return the next line; empty at the end of the output."""
        while b"\n" not in self._unread:
            left_s = max(until_s - time.monotonic(), 0.0)
            if not select.select([self._answers], [], [], left_s)[0]:
                raise TimeoutError
            chunk = os.read(self._answers.fileno(), _CHUNK_BYTES)
            if not chunk:
                break
            self._unread += chunk
        line, end, self._unread = self._unread.partition(b"\n")
        return (line + end).decode(errors="replace")

    def stop(self) -> None:
        self._requests.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()


class PolledMeter(GuardedMeter, Generic[Event]):
    """A meter whose instrument a poller reads; a subclass turns events into a reading.

    Attributes:
        module: Runs as the poller, with the instrument as its argument.
        make_event: Makes an event of the fields that the poller sends.
        advice: What to do if it does not respond.
        limit_s: Longest time until the poller answers; ``start_limit_s`` until it is ready.
        source: What the poller reads, as it says when it is ready.
        make_poller: Starts the poller.
    """

    module: str
    make_event: Callable[..., Event]
    advice: str
    limit_s = start_limit_s = 10.0
    source = ""
    make_poller = PollerProcess

    def __init__(self, instrument: str) -> None:
        self.instrument = instrument
        self._begun_s = 0.0

    def _connect(self) -> None:
        self._poller = self.make_poller(self.module, self.instrument)
        try:
            self.update_interval_s, self.source = self._poller.ask("open", self.start_limit_s)
        except BaseException as error:
            # Ctrl-C included: a monitor takes seconds to start.
            self._poller.stop()
            if isinstance(error, MeasurementError):
                reason = f"the poller of {self.name} {error}"
                raise UnavailableError(reason, self.advice) from error
            raise

    def _release(self) -> None:
        self._poller.stop()

    def _start(self) -> None:
        self._ask("begin")
        self._begun_s = self.clock.now()

    def _stop(self) -> Reading:
        end_s = self.clock.now()
        events: list[Event] = []
        while chunk := self._ask("end"):
            events += [type(self).make_event(*fields) for fields in chunk]
        return self._read_events(tuple(events), end_s)

    def _ask(self, request: str) -> Any:
        try:
            return self._poller.ask(request, self.limit_s)
        except MeasurementError as error:
            raise MeasurementError(f"the poller of {self.name} {error}; {self.advice}") from error

    @abstractmethod
    def _read_events(self, events: tuple[Event, ...], end_s: float) -> Reading:
        """Return the energy from the start of the window to its end."""


# ---------------------------------------------------------------------------------------------
# In the poller's process


class Source(Protocol):
    """An instrument that is polled about every ``poll_s`` seconds."""

    name: str
    poll_s: float
    update_interval_s: float

    def poll(self) -> tuple[Any, ...] | None:
        """Return what has happened since the last poll; None for nothing."""


def serve_requests(
    source: Source, receive: Callable[[float], str | None], send: Callable[[str], None]
) -> None:
    """Poll an instrument and answer requests, until ``receive`` returns None.

    ``receive`` waits for a request at most some seconds, and returns an empty one if none came.
    """
    events: list[tuple[Any, ...]] = []
    is_open = False
    while (received := receive(source.poll_s)) is not None:
        event = source.poll()
        if is_open and event is not None:
            events.append(event)
        number, _, request = received.partition(" ")
        if request == "open":
            answer: Any = [source.update_interval_s, source.name]
        elif request == "begin":
            answer, events, is_open = None, [], True
        elif request == "end":
            answer, events, is_open = events[:_CHUNK_EVENTS], events[_CHUNK_EVENTS:], False
        else:
            continue
        send(f"answer {number} {json.dumps(answer)}")


def run_poller(open_source: Callable[[str], AbstractContextManager[Source]], argument: str) -> int:
    """Poll an instrument until the parent has gone; return the exit status."""
    # Made first: the parent may go while the instrument is opened.
    receive = _make_receiver()
    try:
        with open_source(argument) as source:
            serve_requests(source, receive, _send)
    except BrokenPipeError:
        return 0
    except Exception as error:
        kind = "" if isinstance(error, JoulecastError) else f"{type(error).__name__}: "
        with suppress(BrokenPipeError):
            _send(f"error {kind}{error}")
        return 1
    return 0


def _send(line: str) -> None:
    # Unbuffered: a buffer would raise at exit when the pipe is closed.
    unsent = (line + "\n").encode()
    while unsent:
        unsent = unsent[os.write(1, unsent) :]


def _make_receiver() -> Callable[[float], str | None]:
    parent = os.getppid()

    def receive(seconds: float) -> str | None:
        if os.getppid() != parent:
            return None
        if not select.select([0], [], [], seconds)[0]:
            return ""
        # If there are several requests, the meter waits only for the answer to the last one.
        requests = os.read(0, _CHUNK_BYTES).decode().splitlines()
        return requests[-1] if requests else None

    return receive
