"""The near end of the poller's pipe: starts the process, reads its lines in a thread, keeps edges.

        meter ──start──▶ python -m joulecast.meters.nvml_poller ──lines──▶ thread ──edges──▶ meter

Edges are kept from ``record`` to ``take`` only, so that a meter may stay open for days.
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
_CHECK_GPU = "see that nvidia-smi answers, then try again"


class Poller(Protocol):
    """A source of lines that can be told to stop."""

    def __iter__(self) -> Iterator[str]:
        """Its lines, as they come."""

    def stop(self) -> None:
        """End it; its lines end too."""


class PollerProcess:
    """The poller as a process of its own."""

    def __init__(self, gpu: str) -> None:
        # In a session of its own: Ctrl-C is for the process that trains, which closes this one.
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
    """Environment in which a new interpreter imports what this one can."""
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *(str(Path(entry or ".").resolve()) for entry in sys.path)]
    # The working directory is among them where it is for us, and must not come first else.
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONSAFEPATH": "1"}


class Listener:
    """Reads a poller's lines in a thread; what they say can be waited for."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._changed = threading.Condition()
        self._edges: list[Edge] | None = None
        self._period_s: float | None = None
        self._told_s = float("-inf")
        self._ended = False
        self._words = "it said nothing"
        self._verbs: dict[str, Callable[[str], None]] = {
            "ready": self._hear_ready,
            "edge": self._hear_edge,
            "beat": self._hear_beat,
        }
        self._thread = threading.Thread(target=self._listen, name="joulecast-nvml", daemon=True)
        self._thread.start()

    def wait_ready(self, limit_s: float) -> float:
        """The counter's period, once the poller has begun."""
        with self._changed:
            self._changed.wait_for(lambda: self._period_s is not None or self._ended, limit_s)
            if self._period_s is not None:
                return self._period_s
            why = self._words if self._ended else f"no answer in {limit_s:g} s"
        raise UnavailableError(f"the NVML poller did not start ({why})", _CHECK_GPU)

    def record(self) -> None:
        """Keep edges from now on."""
        with self._changed:
            if self._ended:
                raise MeasurementError(self._obituary())
            self._edges = []

    def take(self, until_s: float, limit_s: float) -> tuple[Edge, ...]:
        """The edges kept, once everything up to a moment has been told."""
        with self._changed:
            self._changed.wait_for(lambda: self._told_s >= until_s or self._ended, limit_s)
            edges, self._edges = tuple(self._edges or ()), None
            if self._told_s >= until_s:
                return edges
            if self._ended:
                raise MeasurementError(self._obituary())
        raise MeasurementError(f"the NVML poller has been silent for {limit_s:g} s; {_CHECK_GPU}")

    def stop(self) -> None:
        """End the poller and the thread."""
        self._poller.stop()
        self._thread.join()

    def _obituary(self) -> str:
        return f"the NVML poller has ended ({self._words}); close the meter and open it again"

    def _listen(self) -> None:
        try:
            for line in self._poller:
                with self._changed:
                    self._hear(line.strip())
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _hear(self, line: str) -> None:
        verb = self._verbs.get(line.partition(" ")[0])
        try:
            if verb is not None:
                verb(line)
                return
        except ValueError:
            pass
        # Anything else is its last words: an error, or the end of a traceback.
        self._words = line[len("error ") :] if line.startswith("error ") else line or self._words

    def _hear_ready(self, line: str) -> None:
        self._period_s = float(line.split()[1])

    def _hear_edge(self, line: str) -> None:
        edge = parse_edge(line)
        self._told_s = edge.time_s
        if self._edges is not None:
            self._edges.append(edge)

    def _hear_beat(self, line: str) -> None:
        self._told_s = float(line.split()[1])
