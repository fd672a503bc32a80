"""Run an instrument's poller in a process, read its lines in a thread, and collect what it saw.

    meter ──start──▶ python -m joulecast.meters.nvml GPU ──lines──▶ thread ──▶ meter

A poller is a separate process, because in the training process a poll would wait for the
interpreter's lock while kernels are issued. It writes one line per event:

    ready INTERVAL SOURCE     it has started; SOURCE updates about every INTERVAL seconds
    beat TIME                 everything up to TIME has been reported
    event [TIME, …]           what it saw: the fields of a named tuple in JSON
    error MESSAGE             it cannot continue

It ends when its standard input closes or its parent has ended. What it saw is collected only while
a window is open, so that a meter can stay open for days.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from joulecast.meters.base import GuardedMeter, Reading, UnavailableError
from joulecast.system.errors import JoulecastError, MeasurementError

_STOP_S = 2.0


class PollerEvent(Protocol):
    """What a poller saw at a moment of time.monotonic, which all processes share."""

    @property
    def time_s(self) -> float: ...


Event = TypeVar("Event", bound=PollerEvent)
Write = Callable[[str], None]
Wait = Callable[[float], bool]


class Poller(Protocol):
    """An iterable of lines that can be stopped."""

    def __iter__(self) -> Iterator[str]: ...

    def stop(self) -> None: ...


class PollerProcess:
    """A poller in a separate process: ``python -m MODULE ARGUMENT``."""

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
            universal_newlines=True,
        )

    def __iter__(self) -> Iterator[str]:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            yield from lines

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class PolledMeter(GuardedMeter, Generic[Event]):
    """A meter whose instrument a poller reads; a subclass turns events into a reading.

    A thread reads the poller's lines and lets the meter wait for them.

    Attributes:
        module: Runs as the poller, with the instrument as its argument.
        advice: What to do if it does not respond.
        start_limit_s: Longest time until it is ready, if that is more than ``limit_s``.
        source: What the poller reads, as it says when it is ready.
    """

    module: str
    make_event: Callable[..., Event]
    advice: str
    start_limit_s = 0.0
    source = ""

    def __init__(
        self,
        instrument: str,
        now: Callable[[], float] = time.monotonic,
        start: Callable[[str], Poller] | None = None,  # starts another poller
        limit_s: float = 10.0,  # longest time without a line from the poller
    ) -> None:
        self.instrument = instrument
        self._now = now
        self._start_poller = start or (lambda argument: PollerProcess(self.module, argument))
        self._limit_s = limit_s
        self._begun_s = 0.0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def _connect(self) -> None:
        self._poller = self._start_poller(self.instrument)
        self._events: list[Event] | None = None
        self._is_ready = self._has_ended = False
        self._reported_s = float("-inf")
        self._last_line = "no message"
        self._thread = threading.Thread(target=self._listen, name="joulecast-poller", daemon=True)
        self._thread.start()
        limit_s = max(self._limit_s, self.start_limit_s)
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._has_ended, limit_s)
            reason = self._last_line if self._has_ended else f"no answer in {limit_s:g} s"
        if not self._is_ready:
            self._release()
            raise UnavailableError(
                f"the poller of {self.name} did not start ({reason})", self.advice
            )

    def _release(self) -> None:
        if self._thread is not None:
            self._poller.stop()
            self._thread.join()
            self._thread = None

    def _start(self) -> None:
        with self._changed:
            self._check_running()
            self._events = []
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        end_s = self._now()
        with self._changed:
            self._changed.wait_for(
                lambda: self._reported_s >= end_s or self._has_ended, self._limit_s
            )
            events, self._events = tuple(self._events or ()), None
            if self._reported_s < end_s:
                self._check_running()
                raise MeasurementError(
                    f"the poller of {self.name} has not responded for {self._limit_s:g} s; "
                    f"{self.advice}"
                )
        return self._read_events(events, end_s)

    @abstractmethod
    def _read_events(self, events: tuple[Event, ...], end_s: float) -> Reading:
        """Return the energy from the start of the window to its end."""

    def _check_running(self) -> None:
        if self._has_ended:
            raise MeasurementError(
                f"the poller of {self.name} has ended ({self._last_line}); close the meter and "
                "open it again"
            )

    def _listen(self) -> None:
        try:
            for line in self._poller:
                with self._changed:
                    self._parse_line(line.strip())
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _parse_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        try:
            if word == "ready":
                interval_s, self.source = rest.split()
                self.update_interval_s = float(interval_s)
                self._is_ready = True
            elif word == "beat":
                self._reported_s = float(rest)
            elif word == "event":
                event = type(self).make_event(*json.loads(rest))
                self._reported_s = event.time_s
                if self._events is not None:
                    self._events.append(event)
            else:
                # An error message, or the end of a traceback.
                self._last_line = rest if word == "error" else line or self._last_line
        except (ValueError, TypeError):
            self._last_line = line


# ---------------------------------------------------------------------------------------------
# In the poller's process


def format_event(event: tuple[Any, ...]) -> str:
    """Return the line of an event."""
    return f"event {json.dumps(event)}"


def run_poller(
    poll: Callable[[str, Write, Wait], None],
    argument: str,
    write: Write | None = None,
    wait: Wait | None = None,
) -> int:
    """Poll an instrument until ``wait`` returns that the parent has gone; return the exit status.

    Errors are written for the listener, which quotes them.
    """
    write = write or _write_line
    try:
        poll(argument, write, wait or _make_wait())
    except BrokenPipeError:
        return 0
    except Exception as error:
        kind = "" if isinstance(error, JoulecastError) else f"{type(error).__name__}: "
        with suppress(BrokenPipeError):
            write(f"error {kind}{error}")
        return 1
    return 0


def _write_line(line: str) -> None:
    # Unbuffered: a buffer would delay lines, and raise at exit when the pipe is closed.
    os.write(1, (line + "\n").encode())


def _make_wait() -> Wait:
    """Return a sleep that returns whether the parent has closed our input or has ended."""
    parent = os.getppid()

    def wait(seconds: float) -> bool:
        readable: tuple[list[int], list[int], list[int]] = select.select([0], [], [], seconds)
        return bool(readable[0]) or os.getppid() != parent

    return wait
