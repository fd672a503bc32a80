"""Answer requests: check them, measure, and remember the last answers.

    content ─▶ request ─▶ answered before? ─▶ does it fit? ─▶ lock the device ─▶ measure ─▶ answer
                              └── the same answer

A client asks again under the same id when it lost the connection. Whatever was measured meanwhile
is still here, so nothing is lost, and nothing is measured twice.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from joulecast.agent.messages import (
    AgentAnswer,
    AgentDescription,
    AgentRequest,
    decode_message,
    describe_error,
    drop_trial,
    encode_message,
)
from joulecast.devices import detect_device, find_free_memory
from joulecast.errors import (
    DeviceAwayError,
    JoulecastError,
    MeasurementError,
    MeterLostError,
    OutOfMemoryError,
)
from joulecast.input_files import first_line
from joulecast.kinds import check_observed, peak_memory
from joulecast.local_devices import name_lock, open_local_measurer
from joulecast.measurer import Measurer
from joulecast.measurer.device_lock import hold_device
from joulecast.measurer.idle_checks import IdleChecks
from joulecast.measurer.lost_devices import is_device_lost
from joulecast.records import Device, Observation, Trial
from joulecast.runtimes import find_hardware

# Answers have less than a kilobyte each, and clients ask one request after the other.
_REMEMBERED = 64
# How long another process of this machine may still measure, such as an agent whose client is gone.
_LOCK_WAIT_S = 120.0


@dataclass(frozen=True)
class AgentOptions:
    """What an agent measures on.

    Attributes:
        on: A device of this machine, as ``joulecast measure --on`` takes it.
        meter: Name of a meter.
        device_name: Name to record for the device instead of the detected one.
    """

    on: str = "cpu"
    meter: str = "auto"
    device_name: str = ""


class AgentService:
    """Answers requests about one device, one at a time.

    Attributes:
        is_lost: The process can no longer use the device: it has to be started anew.
    """

    def __init__(self, options: AgentOptions, lock_wait_s: float = _LOCK_WAIT_S) -> None:
        """Open runtime and meter of the device.

        Args:
            options: What is measured on.
            lock_wait_s: How long to wait while another process measures on the device.

        Raises:
            InputError: The device or meter does not exist.
            MissingError: The device, the meter or the framework is not available.
        """
        self._measurer = open_local_measurer(
            options.on, options.meter, device_name=options.device_name, allows_later=True
        )
        self._options = options
        self._hardware = find_hardware(options.on)
        self._lock_name = name_lock(options.on)
        self._lock_wait_s = lock_wait_s
        self._answers: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()
        self._is_open = False
        self.is_lost = False

    def __enter__(self) -> AgentService:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def describe(self) -> AgentDescription:
        """Return what clients need to know about the device, in its present power mode."""
        self._update_power_mode()
        return _describe(self._measurer)

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
        answer = AgentAnswer(request.id)
        try:
            if request.task == "describe":
                answer = replace(answer, description=self.describe())
            else:
                observation = drop_trial(self._measure(request, disturbances))
                answer = replace(answer, observation=observation)
        except Exception as error:
            self.is_lost = is_device_lost(error)
            answer = replace(answer, error=describe_error(_convert_error(error)))
        clock_s = max(0.0, self._measurer.now())
        return replace(answer, disturbances=dict(disturbances), clock_s=clock_s)

    def _measure(self, request: AgentRequest, disturbances: Counter[str]) -> Observation:
        self._update_power_mode()
        measurer = replace(
            self._measurer, run=request.run, rounds=request.rounds, disturbances=disturbances
        )
        if request.trial is not None:
            check_fits(request.trial, measurer.runtime.device)
        with self._hold_device():
            self._open()
            try:
                if request.trial is None:
                    return measurer.measure_idle()
                measure = measurer.measure if request.task == "measure" else measurer.time
                return measure(request.trial)
            except MeterLostError:
                # It is opened again for the next request: it may be plugged in by then.
                self._close()
                raise

    @contextmanager
    def _hold_device(self) -> Iterator[None]:
        """Hold the lock of the device, if it has one."""
        with ExitStack() as stack:
            try:
                if self._lock_name is not None:
                    stack.enter_context(
                        hold_device(self._lock_name, self._options.on, wait_s=self._lock_wait_s)
                    )
            except MeasurementError as error:
                raise DeviceAwayError(str(error)) from error
            yield

    def _open(self) -> None:
        if not self._is_open:
            try:
                self._measurer.meter.open()
            except MeasurementError as error:
                raise MeterLostError(str(error)) from error
            self._is_open = True

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._measurer.meter.close()


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


def _describe(measurer: Measurer) -> AgentDescription:
    runtime, meter = measurer.runtime, measurer.meter
    return AgentDescription(
        runtime.device,
        runtime.name,
        runtime.modes,
        meter.name,
        meter.covers,
        meter.provenance,
        meter.is_recorder,
        has_virtual_clock=measurer.clock.now is not time.monotonic,
        version=_find_version(),
    )


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


def _find_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("joulecast")
    except PackageNotFoundError:
        return ""
