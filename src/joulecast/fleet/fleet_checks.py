"""Check whether the devices of a fleet answer, and are what the fleet file says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from joulecast.agent.client import RemoteMeasurer, open_remote_measurer
from joulecast.agent.links import LinkLimits
from joulecast.agent.tokens import read_token
from joulecast.campaign import find_profile_key
from joulecast.errors import DeviceAwayError, InputError, JoulecastError
from joulecast.fleet.fleet_file import FleetDevice
from joulecast.runtimes import PROFILE_NAMES
from joulecast.store.campaigns import AWAY, READY, REFUSED

# A device that answers does so in milliseconds; one over ssh has to start its agent first.
CHECK_LIMITS = LinkLimits(connect_s=5.0, answer_s=60.0, retry_s=0.0)
_MOST_AT_ONCE = 32

OpenDevice = Callable[[FleetDevice], RemoteMeasurer]


@dataclass(frozen=True)
class DeviceCheck:
    """What a device answered.

    Attributes:
        state: ``ready``, ``away`` (try again later) or ``refused`` (correct something first).
        reason: Why it is not ready, with what to do.
        profile_key: The profile that its observations belong to.
        description: Device, runtime and meter, as the agent found them.
    """

    device: FleetDevice
    state: str
    reason: str = ""
    profile_key: str = ""
    description: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether the device can be measured."""
        return self.state == READY


def open_device(device: FleetDevice, limits: LinkLimits | None = None) -> RemoteMeasurer:
    """Return the measurer of a device; use it in a ``with`` statement.

    Args:
        device: The device.
        limits: How long to wait for its agent.

    Raises:
        DeviceAwayError: Its agent does not answer.
        InputError: The token is wrong or missing, or the device is not what its file says.
    """
    token = read_token(device.token_file)
    measurer = open_remote_measurer(device.address, token, limits=limits)
    try:
        _check_expected(device, measurer)
    except InputError:
        measurer.connection.close()
        raise
    return measurer


def check_device(device: FleetDevice) -> DeviceCheck:
    """Ask a device what it is."""
    try:
        with open_device(device, CHECK_LIMITS) as measurer:
            runtime, meter = measurer.runtime, measurer.meter
            parts = (runtime.device.name, runtime.device.power_mode, runtime.name, meter.name)
            description = ", ".join(filter(None, parts))
            return DeviceCheck(device, READY, "", find_profile_key(measurer), description)
    except DeviceAwayError as error:
        return DeviceCheck(device, AWAY, str(error))
    except JoulecastError as error:
        return DeviceCheck(device, REFUSED, str(error))


def check_devices(devices: Sequence[FleetDevice]) -> Iterator[DeviceCheck]:
    """Check many devices at once; yield what each answered as soon as it has."""
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(devices))) as pool:
        for done in as_completed([pool.submit(check_device, one) for one in devices]):
            yield done.result()


def _check_expected(device: FleetDevice, measurer: RemoteMeasurer) -> None:
    """Raise InputError for a device that is not what its file says."""
    found = {
        "runtime": measurer.runtime.name,
        "meter": measurer.meter.name,
        "power_mode": measurer.runtime.device.power_mode,
    }
    for key, value in found.items():
        wanted = getattr(device, key)
        # A framework may be given without its version.
        if wanted and value != wanted and not (key == "runtime" and _is_version(value, wanted)):
            raise InputError(
                f"the agent of {device.name} has {key} {value or 'unknown'!r}, not {wanted!r} as "
                "the fleet file says: start it with another one, or correct the file"
            )


def _is_version(runtime: str, framework: str) -> bool:
    return runtime.startswith(f"{PROFILE_NAMES.get(framework, framework)}-")
