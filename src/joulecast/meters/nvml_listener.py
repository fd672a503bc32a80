"""Start the NVML poller, read its lines in a thread, and collect its edges.

    meter ──start──▶ python -m joulecast.meters.nvml_poller ──lines──▶ thread ──edges──▶ meter

Edges are collected only from ``record`` to ``take``, so that a meter can stay open for days.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from joulecast.errors import MeasurementError
from joulecast.meters.base import UnavailableError
from joulecast.meters.nvml_edges import Edge, parse_edge

_STOP_S = 2.0
_CHECK_GPU = "check that nvidia-smi works, then try again"


class Poller(Protocol):
    """An iterable of lines that can be stopped."""

    def __iter__(self) -> Iterator[str]:
        """Yield its lines as they come."""

    def stop(self) -> None:
        """Stop it, which ends its lines."""


class PollerProcess:
    """The poller in a separate process."""

    def __init__(self, gpu: str) -> None:
        # In a new session: Ctrl-C is for the training process, which stops this one.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "joulecast.meters.nvml_poller", gpu],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_import_paths()},
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


def _import_paths() -> dict[str, str]:
    """Return the environment in which a new interpreter imports what this one can."""
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *(str(Path(entry or ".").resolve()) for entry in sys.path)]
    # PYTHONSAFEPATH: the working directory must not come first if it does not here.
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONSAFEPATH": "1"}


class Listener:
    """A thread that reads a poller's lines and lets callers wait for them.

    Attributes:
        has_counter: Whether the poller reads an energy counter, and not the power sensor alone.
    """

    def __init__(self, poller: Poller) -> None:
        self.has_counter = True
        self._poller = poller
        self._changed = threading.Condition()
        self._edges: list[Edge] | None = None
        self._update_interval_s: float | None = None
        self._reported_s = float("-inf")
        self._has_ended = False
        self._last_line = "no message"
        self._parsers: dict[str, Callable[[str], None]] = {
            "ready": self._parse_ready,
            "edge": self._parse_edge,
            "beat": self._parse_beat,
        }
        self._thread = threading.Thread(target=self._listen, name="joulecast-nvml", daemon=True)
        self._thread.start()

    def wait_ready(self, limit_s: float) -> float:
        """Return the counter's update interval once the poller has started."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._update_interval_s is not None or self._has_ended, limit_s
            )
            if self._update_interval_s is not None:
                return self._update_interval_s
            reason = self._last_line if self._has_ended else f"no answer in {limit_s:g} s"
        raise UnavailableError(f"the NVML poller did not start ({reason})", _CHECK_GPU)

    def record(self) -> None:
        """Collect edges from now on."""
        with self._changed:
            if self._has_ended:
                raise MeasurementError(self._describe_end())
            self._edges = []

    def take(self, until_s: float, limit_s: float) -> tuple[Edge, ...]:
        """Return the collected edges once everything up to a moment has been reported."""
        with self._changed:
            self._changed.wait_for(lambda: self._reported_s >= until_s or self._has_ended, limit_s)
            edges, self._edges = tuple(self._edges or ()), None
            if self._reported_s >= until_s:
                return edges
            if self._has_ended:
                raise MeasurementError(self._describe_end())
        raise MeasurementError(f"the NVML poller has not responded for {limit_s:g} s; {_CHECK_GPU}")

    def stop(self) -> None:
        """Stop the poller and the thread."""
        self._poller.stop()
        self._thread.join()

    def _describe_end(self) -> str:
        return f"the NVML poller has ended ({self._last_line}); close the meter and open it again"

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
        parse = self._parsers.get(line.partition(" ")[0])
        try:
            if parse is not None:
                parse(line)
                return
        except ValueError:
            pass
        # Anything else is an error message, or the end of a traceback.
        self._last_line = (
            line[len("error ") :] if line.startswith("error ") else line or self._last_line
        )

    def _parse_ready(self, line: str) -> None:
        _, interval_s, source = line.split()
        self.has_counter = source == "counter"
        self._update_interval_s = float(interval_s)

    def _parse_edge(self, line: str) -> None:
        edge = parse_edge(line)
        self._reported_s = edge.time_s
        if self._edges is not None:
            self._edges.append(edge)

    def _parse_beat(self, line: str) -> None:
        self._reported_s = float(line.split()[1])
