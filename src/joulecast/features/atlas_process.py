"""Measure an atlas in a process that is replaced whenever it dies.

    this process ──request──▶ worker ──observations──▶ store
         ▲                      │
         └──────messages────────┘    dead, or the device is lost: refuse the trial, start anew

An error of CUDA makes every further call of a process fail, a bug in a library may end it, and the
operating system kills a process that takes too much memory. None of that ends a campaign.

The worker is this module, run by ``python -m``. The request is JSON on stdin; every line of the
answer is a message in JSON:

    {"profile": key}            whose observations it adds to the store
    {"trial": observation}      what is measured next, without values: should the worker die while
                                it measures, the other end stores it as refused
    {"progress": values}        the state of the campaign
    {"lost": reason}            the process can no longer use the device
    {"error": [class, text]}    one of Joulecast's errors
    {"run": values}             the end

It writes observations to the store itself, and stops when its messages are no longer read.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from joulecast.campaign import Progress
from joulecast.campaign.atlas import AtlasLimits, AtlasRun, run_atlas
from joulecast.campaign.trial_log import find_profile_key
from joulecast.features.measurers import open_any_measurer
from joulecast.features.options import MeasureOptions
from joulecast.records import Observation
from joulecast.store import open_store
from joulecast.system import errors
from joulecast.system.errors import DeviceLostError, JoulecastError, MeasurementError

INTERRUPTED = "it was interrupted"
# -P: otherwise Python would import modules of the current folder first, which may be anybody's.
WORKER_COMMAND = (sys.executable, "-P", "-m", "joulecast.features.atlas_process")
# A worker that is silent for longer hangs: a trial seldom takes a minute.
_LONGEST_SILENCE_S = 300.0
# So many workers in a row that measured nothing end the campaign.
_MOST_FAILURES = 3
_CHUNK_BYTES = 1 << 16

ReportProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class AtlasRequest:
    """Which device is measured, how long, and where observations are stored."""

    measuring: MeasureOptions
    limits: AtlasLimits
    store: str | None = None
    campaign_key: str = ""  # the campaign in the store that may be asked to stop; empty for none

    def to_json(self) -> str:
        """Return the request as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AtlasRequest:
        """Return a request from its JSON."""
        data = json.loads(text)
        limits = AtlasLimits(**data["limits"])
        measuring = MeasureOptions(**data["measuring"])
        return cls(measuring, limits, data["store"], data["campaign_key"])


def measure_in_workers(
    request: AtlasRequest,
    on_progress: ReportProgress | None = None,
    lock_file: int | None = None,
    silence_s: float = _LONGEST_SILENCE_S,
    command: Sequence[str] = WORKER_COMMAND,
) -> AtlasRun:
    """Measure an atlas in one worker after the other; return what they did together.

    The store knows how many trials are new, since workers that die cannot tell. An interruption
    ends the measurement and not the caller, which can still fit what was measured.

    Raises:
        JoulecastError: A worker raised it.
        MeasurementError: Several workers died before they measured anything.
    """
    state = _AtlasState(on_progress)
    failures = 0
    while True:
        done, left_s = state.done, state.find_left_s(request.limits.seconds)
        limits = replace(request.limits, seconds=left_s)
        try:
            own = replace(request, limits=limits)
            with _start_worker(command, own, lock_file) as worker:
                state.follow(worker, silence_s)
        except KeyboardInterrupt:
            return state.finish(INTERRUPTED)
        if state.run is not None:
            return state.finish(state.run.stopped)
        state.refuse_trial(request.store)
        failures = 0 if state.done > done + 1 else failures + 1
        if failures == _MOST_FAILURES:
            raise MeasurementError(
                f"the measuring process failed {failures} times in a row: {state.death}"
            )


@dataclass
class _Worker:
    """A running worker and where it writes."""

    process: subprocess.Popen[bytes]
    log: Any

    def read_messages(self, silence_s: float) -> Iterator[dict[str, Any]]:
        """Yield messages until the worker ends.

        Raises:
            TimeoutError: The worker was silent for too long.
        """
        assert self.process.stdout is not None
        pipe, rest = self.process.stdout.fileno(), b""
        while True:
            if not select.select([pipe], [], [], silence_s)[0]:
                raise TimeoutError
            chunk = os.read(pipe, _CHUNK_BYTES)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (json.loads(line) for line in lines)

    def describe_death(self) -> str:
        """Return how the worker ended, and its last words."""
        code = self.process.wait()
        how = f"ended with code {code}"
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += ", perhaps because it took too much memory"
        self.log.seek(0)
        words = self.log.read().decode(errors="replace").strip().splitlines()
        return f"the process {how}" + (f" ({words[-1].strip()[:200]})" if words else "")


@dataclass
class _AtlasState:
    """What workers have told so far."""

    on_progress: ReportProgress | None
    started_s: float = field(default_factory=time.monotonic)
    key: str = ""
    done: int = 0
    trial: dict[str, Any] | None = None
    run: AtlasRun | None = None
    death: str = ""
    is_refused: bool = False
    restarts: int = 0
    disturbances: Counter[str] = field(default_factory=Counter)

    def follow(self, worker: _Worker, silence_s: float) -> None:
        """Take in the messages of a worker until it ends."""
        self.trial, self.run, self.is_refused = None, None, False
        try:
            for message in worker.read_messages(silence_s):
                for kind, value in message.items():
                    getattr(self, f"_take_{kind}")(value)
        except TimeoutError:
            worker.process.kill()
            self.death = f"the process hung for {silence_s:.0f} s"
            return
        if self.run is None and not self.is_refused:
            self.death = worker.describe_death()

    def refuse_trial(self, store: str | None) -> None:
        """Store the trial at which a worker died, unless the worker has done so itself."""
        self.restarts += 1
        if self.trial is not None and not self.is_refused:
            refused = replace(Observation.from_dict(self.trial), refusal=self.death)
            with open_store(store) as opened:
                opened.add_observation(refused)

    def find_left_s(self, seconds: float | None) -> float | None:
        """Return what is left of a budget."""
        passed_s = time.monotonic() - self.started_s
        return None if seconds is None else max(0.0, seconds - passed_s)

    def finish(self, stopped: str) -> AtlasRun:
        """Return what all workers did together, without the number of trials: some died."""
        elapsed_s = time.monotonic() - self.started_s
        repeated = self.run.repeated if self.run else 0
        disturbances = dict(self.disturbances)
        return AtlasRun(self.key, 0, stopped, elapsed_s, repeated, disturbances, self.restarts)

    def _take_profile(self, key: str) -> None:
        self.key = key

    def _take_trial(self, trial: dict[str, Any]) -> None:
        self.trial = trial

    def _take_progress(self, values: dict[str, Any]) -> None:
        now = replace(Progress(**values), elapsed_s=time.monotonic() - self.started_s)
        self.done = now.points
        if self.on_progress is not None:
            self.on_progress(now)

    def _take_lost(self, reason: str) -> None:
        self.death, self.is_refused = reason, True

    def _take_error(self, error: list[str]) -> None:
        name, text = error
        raise getattr(errors, name, MeasurementError)(text)

    def _take_run(self, values: dict[str, Any]) -> None:
        self.run = AtlasRun(**values)
        self.disturbances.update(self.run.disturbances)


@contextmanager
def _start_worker(
    command: Sequence[str], request: AtlasRequest, lock_file: int | None
) -> Iterator[_Worker]:
    """Start a worker; end it when the block is left.

    Every user of a machine can read the arguments of its processes, and the URL of a store may
    contain a password: so the request goes through a pipe.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # An interruption reaches this process only, which then ends the worker.
            start_new_session=True,
            pass_fds=() if lock_file is None else (lock_file,),
        )
        try:
            assert process.stdin is not None
            # A worker that is already dead tells so when its messages are read.
            with suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(request.to_json().encode())
            yield _Worker(process, log)
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.0 if process.poll() is None else 1.0)
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def main() -> None:
    """Measure what the request asks for."""
    # What libraries print must not mix with messages.
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = AtlasRequest.from_json(sys.stdin.read())

    def send(message: Mapping[str, Any]) -> None:
        messages.write(json.dumps(message, separators=(",", ":")) + "\n")
        messages.flush()

    try:
        answer_request(request, send)
    except BrokenPipeError:
        os._exit(1)


def answer_request(request: AtlasRequest, send: Callable[[Mapping[str, Any]], None]) -> None:
    """Measure an atlas and send messages about it."""
    try:
        with open_any_measurer(request.measuring) as measurer, open_store(request.store) as store:
            send({"profile": find_profile_key(measurer)})
            run = run_atlas(
                measurer,
                store,
                request.limits,
                on_trial=lambda trial: send({"trial": trial.to_dict()}),
                on_progress=lambda progress: send({"progress": asdict(progress)}),
                is_stop_requested=partial(store.campaigns.is_stop_requested, request.campaign_key),
            )
            send({"run": asdict(run)})
    except DeviceLostError as error:
        send({"lost": str(error)})
    except JoulecastError as error:
        send({"error": [type(error).__name__, str(error)]})


if __name__ == "__main__":
    main()
    # Nothing is left to do, and a device that failed may hang while it is closed.
    sys.stdout.flush()
    os._exit(0)
