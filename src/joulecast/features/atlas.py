"""Profile a device without a net: measure an atlas for any network, or anchors alone.

An atlas is measured in a process that is replaced whenever it dies:

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

from joulecast.agent.addresses import is_remote
from joulecast.campaign import Progress
from joulecast.campaign.anchors import (
    ANCHORS_NAME,
    assume_device_scale,
    read_peaks,
    run_anchors,
)
from joulecast.campaign.atlas import AtlasLimits, AtlasRun, run_atlas, summarise_atlas
from joulecast.campaign.trial_log import (
    ATLAS_NAME,
    CampaignRecord,
    describe_profile,
    find_profile_key,
    record_campaign,
)
from joulecast.estimators import check_estimator
from joulecast.estimators.fitted_profile import match_device_sheet
from joulecast.estimators.plausibility import drop_contradicted
from joulecast.features.measurers import MeasureOptions, lock_device, open_any_measurer
from joulecast.features.profile import ProfileOptions
from joulecast.features.profile_report import ProfileResult, describe_anchors, describe_atlas
from joulecast.features.profiles import identify_profile
from joulecast.features.transfer_sources import make_estimator
from joulecast.measurer.base import TrialMeasurer
from joulecast.records import MODES, Observation, Profile
from joulecast.records.data_sheet import DataSheet
from joulecast.runtimes import find_hardware
from joulecast.store import open_store
from joulecast.system import errors
from joulecast.system.errors import (
    DeviceLostError,
    InputError,
    JoulecastError,
    MeasurementError,
    MissingError,
    arg,
)

INTERRUPTED = "it was interrupted"
# -P: otherwise Python would import modules of the current folder first, which may be anybody's.
WORKER_COMMAND = (sys.executable, "-P", "-m", "joulecast.features.atlas")
# A worker that is silent for longer hangs: a trial seldom takes a minute.
_LONGEST_SILENCE_S = 300.0
# So many workers in a row that measured nothing end the campaign.
_MOST_FAILURES = 3
_CHUNK_BYTES = 1 << 16


def profile_atlas(
    measuring: MeasureOptions,
    profiling: ProfileOptions,
    store: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProfileResult:
    """Measure an atlas of a device, fit an estimator, and return what is known now.

    Raises:
        MeasurementError: The device could not be measured, or another campaign runs on it.
    """
    limits = AtlasLimits(
        seconds=profiling.limit_s,
        points=profiling.points,
        retries_refused=profiling.retry_refused,
        phase=profiling.phase,
    )
    # Before anything is measured: an unknown estimator, or a store that cannot be opened.
    check_estimator(profiling.estimator)
    started_at_s = time.time()
    # Never opened: the device is left to the process that measures.
    own = describe_profile(open_any_measurer(measuring))
    if profiling.from_:
        estimator = make_estimator(profiling.estimator, profiling.from_, own, store)
    with lock_device(measuring.on) as lock_file, open_store(store) as opened:
        with record_campaign(opened, own, ATLAS_NAME) as record:
            tell = partial(_tell, record, on_progress)
            # A database in memory cannot be shared with another process; an agent is one already.
            is_here = not is_remote(measuring.on) and find_hardware(measuring.on) is not None
            if is_here and opened.place != ":memory:":
                request = AtlasRequest(measuring, limits, store, record.key)
                run = measure_in_workers(request, tell, lock_file)
            else:
                with open_any_measurer(measuring) as measurer:
                    run = run_atlas(
                        measurer,
                        opened,
                        limits,
                        on_progress=tell,
                        is_stop_requested=record.is_stop_requested,
                    )
            record.finish(run.stopped)
        if not run.profile_key:
            raise MissingError("nothing was measured yet: run the same command again")
        if not profiling.from_:
            own = opened.load_profile(run.profile_key)
            estimator = make_estimator(profiling.estimator, (), own, store)
        observations = drop_contradicted(opened.load_observations(run.profile_key))
        if on_progress is not None:
            text = f"fitting {estimator.name} to {len(observations)} observations"
            on_progress(Progress(len(observations), 0.0, run.elapsed_s, 0.0, text))
        try:
            fitted = estimator.fit(observations)
        except MissingError as error:
            raise MissingError(
                f"{len(observations)} observations are stored, too few to fit {estimator.name}: "
                "run the same command again to continue"
            ) from error
        opened.save_fit(run.profile_key, estimator.name, fitted.to_dict())
        learnt = opened.load_profile(run.profile_key)
    # Workers that died could not tell how many trials are new.
    trials = {
        one.trial for one in observations if one.taken_at_s >= started_at_s and not one.refusal
    }
    run = replace(run, new=sum(bool(trial.network.layers) for trial in trials))
    modes = MODES if any(one.trial.mode == "graph" for one in learnt.observations) else ("eager",)
    peaks = read_peaks(learnt.observations, assume_device_scale(learnt.device, modes), modes)
    command = f"joulecast estimate NET --device {identify_profile(learnt, store)}"
    command += " --inference" if profiling.phase == "inference" else ""
    return describe_atlas(run, summarise_atlas(learnt.observations, peaks), learnt, command)


def _tell(
    record: CampaignRecord, on_progress: Callable[[Progress], None] | None, progress: Progress
) -> None:
    """Record progress, and pass it on."""
    record.store_progress(progress)
    if on_progress is not None:
        on_progress(progress)


def profile_anchors(
    measuring: MeasureOptions,
    store: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProfileResult:
    """Measure the anchors of a GPU, and return its rates beside those of its data sheet.

    Raises:
        InputError: The device is a processor.
        MissingError: The catalogue has no data sheet of the device.
        MeasurementError: The device could not be measured, or another campaign runs on it.
    """
    measurer = open_any_measurer(measuring)
    own = describe_profile(measurer)
    # Before anything is measured.
    sheet = _find_sheet(measurer, own, measuring.on)
    with measurer, lock_device(measuring.on), open_store(store) as opened:
        with record_campaign(opened, own, ANCHORS_NAME) as record:
            run = run_anchors(
                measurer,
                opened,
                sheet,
                on_progress=partial(_tell, record, on_progress),
                is_stop_requested=record.is_stop_requested,
            )
            record.finish(run.stopped)
        profile = opened.load_profile(own.key)
    command = f"joulecast estimate NET --device {identify_profile(profile, store)}"
    return describe_anchors(run, sheet, profile, command)


def _find_sheet(measurer: TrialMeasurer, own: Profile, on: str) -> DataSheet:
    device = measurer.runtime.device
    if "graph" not in measurer.runtime.modes:
        raise InputError(
            f"anchors narrow the data sheet of a GPU, and {device.name} is a processor: give "
            f"{arg('on', 'cuda:0')}, or measure it with `joulecast profile NET --on {on}`"
        )
    sheet = match_device_sheet(device)
    if sheet is None:
        called = device.name if device.processor in ("", own.runtime) else device.processor
        raise MissingError(
            f"the catalogue has no data sheet of {called!r}: describe it in a TOML file with "
            f'aliases = ["{called}"], add that with `joulecast devices --add FILE.toml`, and run '
            "the same command again"
        )
    return sheet


# ---------------------------------------------------------------------------------------------
# Workers


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
    on_progress: Callable[[Progress], None] | None = None,
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
        done, own = state.done, request
        if own.limits.seconds is not None:
            left_s = max(0.0, own.limits.seconds - state.elapsed_s)
            own = replace(own, limits=replace(own.limits, seconds=left_s))
        try:
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

    on_progress: Callable[[Progress], None] | None
    started_s: float = field(default_factory=time.monotonic)
    key: str = ""
    done: int = 0
    trial: dict[str, Any] | None = None
    run: AtlasRun | None = None
    death: str = ""
    is_refused: bool = False
    restarts: int = 0
    disturbances: Counter[str] = field(default_factory=Counter)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def follow(self, worker: _Worker, silence_s: float) -> None:
        """Take in the messages of a worker until it ends."""
        self.trial, self.run, self.is_refused = None, None, False
        try:
            for message in worker.read_messages(silence_s):
                self._take(message)
        except TimeoutError:
            worker.process.kill()
            self.death = f"the process hung for {silence_s:.0f} s"
            return
        if self.run is None and not self.is_refused:
            self.death = worker.describe_death()

    def _take(self, message: dict[str, Any]) -> None:
        match message:
            case {"profile": key}:
                self.key = key
            case {"trial": trial}:
                self.trial = trial
            case {"progress": values}:
                now = replace(Progress(**values), elapsed_s=self.elapsed_s)
                self.done = now.points
                if self.on_progress is not None:
                    self.on_progress(now)
            case {"lost": reason}:
                self.death, self.is_refused = reason, True
            case {"error": [name, text]}:
                raise getattr(errors, name, MeasurementError)(text)
            case {"run": values}:
                self.run = AtlasRun(**values)
                self.disturbances.update(self.run.disturbances)

    def refuse_trial(self, store: str | None) -> None:
        """Store the trial at which a worker died, unless the worker has done so itself."""
        self.restarts += 1
        if self.trial is not None and not self.is_refused:
            refused = replace(Observation.from_dict(self.trial), refusal=self.death)
            with open_store(store) as opened:
                opened.add_observation(refused)

    def finish(self, stopped: str) -> AtlasRun:
        """Return what all workers did together, without the number of trials: some died."""
        repeated = self.run.repeated if self.run else 0
        counts = dict(self.disturbances)
        return AtlasRun(self.key, 0, stopped, self.elapsed_s, repeated, counts, self.restarts)


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
        send({"error": [type(error).__name__, error.message]})


if __name__ == "__main__":
    main()
    # Nothing is left to do, and a device that failed may hang while it is closed.
    sys.stdout.flush()
    os._exit(0)
