"""Open a measurer of a device here (see ``measurer.local_devices``) or elsewhere.

http://board:8377      a device elsewhere, by its agent, under the meter of the agent
ssh://user@board       the same; the agent is started over ssh
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from joulecast.agent.addresses import is_remote
from joulecast.measurer import MeasureLimits, TrialMeasurer
from joulecast.measurer.device_lock import hold_device
from joulecast.measurer.local_devices import NOT_LATER, name_lock, open_local_measurer
from joulecast.records import Trial
from joulecast.records.runtime import Runtime, Step
from joulecast.runtimes import is_plugin, name_framework
from joulecast.system.errors import InputError, arg

if TYPE_CHECKING:
    from joulecast.agent.client import RemoteMeasurer

# Frameworks, as profiles name them, by the format of the nets that they run themselves.
_OWN_NETS = {"module": ("torch",), "onnx": ("onnxruntime",)}


@dataclass(frozen=True)
class MeasureOptions:
    """Where and how a net is measured.

    Attributes:
        on: ``cpu``, ``cuda:0``, ``mnn:cpu``, ``onnx:cpu``, ``simulated:SEED``, or the address of
            an agent: ``http://board:8377`` or ``ssh://user@board``.
        warmup: Steps before the windows; by default as many as it takes until their time settles.
        runs: Fewest steps of a window; by default as many as a tenth of a second takes. A meter
            that updates slowly may need more.
    """

    on: str = "cpu"
    meter: str = "auto"  # name of a meter, as joulecast detect lists them; nvml+rapl adds two up
    rounds: int = 3  # measured windows; the result is their median
    device_name: str = ""  # name to record for the device instead of the detected one
    warmup: int = 0
    runs: int = 0


class OwnNet(Protocol):
    """A user's own net, a module or an ONNX file, with a loss of its own or None."""

    @property
    def loss(self) -> Any: ...

    def prepare(self, runtime: Any, trial: Trial) -> Step:
        """Return it as a checked step of a runtime, run as the trial says."""


def open_any_measurer(
    options: MeasureOptions | None = None,
    *,
    allows_later: bool = False,
) -> TrialMeasurer:
    """Return a measurer of a device here or elsewhere; use it in a ``with`` statement.

    Args:
        options: Device, meter and number of rounds.
        allows_later: Whether the caller stores observations whose energy comes later.

    Raises:
        InputError: The device or meter does not exist, several devices are given, or the agent of
            a device elsewhere refuses the token.
        MissingError: The device, the meter or the framework is not available.
        DeviceAwayError: The agent of a device elsewhere does not answer.
    """
    options = options or MeasureOptions()
    if is_remote(options.on):
        remote = open_remote(options)
        if remote.meter.is_recorder and not allows_later:
            raise InputError(NOT_LATER)
        return remote
    return open_local_measurer(
        options.on,
        options.meter,
        rounds=options.rounds,
        device_name=options.device_name,
        allows_later=allows_later,
        limits=MeasureLimits(window_steps=options.runs, warmup_steps=options.warmup),
    )


def open_remote(options: MeasureOptions) -> RemoteMeasurer:
    """Return a measurer of a device elsewhere, with the token of this process's environment."""
    # Most commands measure here.
    from joulecast.agent.addresses import read_token
    from joulecast.agent.client import open_remote_measurer

    if options.meter != "auto":
        raise InputError(
            f"the agent at {options.on} has its own meter: leave {arg('meter', options.meter)} "
            "out, and give it to `joulecast agent` there"
        )
    if options.warmup or options.runs:
        raise InputError(
            f"the agent at {options.on} warms up and chooses its windows by itself: leave "
            f"{arg('warmup')} and {arg('runs')} out"
        )
    return open_remote_measurer(
        options.on, read_token(), rounds=options.rounds, device_name=options.device_name
    )


class OwnNetRuntime:
    """A runtime that runs a user's own net, whatever network a trial describes."""

    def __init__(self, runtime: Runtime, loaded: OwnNet) -> None:
        self.name, self.device, self.modes = runtime.name, runtime.device, runtime.modes
        self._runtime, self._loaded = runtime, loaded

    def prepare(self, trial: Trial) -> Step:
        return self._loaded.prepare(self._runtime, trial)


def runs_own_net(on: str, form: str) -> bool:
    """Return whether a device can run the user's own ``module`` or ``onnx`` file itself."""
    return not is_remote(on) and not is_plugin(on) and name_framework(on) in _OWN_NETS[form]


def lock_device(on: str) -> AbstractContextManager[int | None]:
    """Return the lock of a device, so that only one campaign runs on it; simulated ones have none.

    Raises:
        MeasurementError: On entering: another campaign runs on the device.
    """
    return hold_device(on if is_remote(on) else name_lock(on), on)
