"""Measure on a device elsewhere, as if it were here.

A request that got no answer is sent again under the same id, so that the agent measures once,
however often the connection is lost.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from joulecast.agent.addresses import parse_address
from joulecast.agent.links import AgentSilentError, Link, LinkLimits, make_link
from joulecast.agent.messages import (
    MOST_REQUEST_BYTES,
    AgentAnswer,
    AgentDescription,
    AgentRequest,
    decode_message,
    encode_message,
)
from joulecast.agent.tokens import check_token
from joulecast.errors import DeviceAwayError, InputError
from joulecast.measurer.base import describe_refusal, make_run
from joulecast.records import Device, Observation, Trial

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0


def _make_id(task: str, trial: Trial | None = None) -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True)
class RemoteRuntime:
    """The framework and device of an agent."""

    name: str
    device: Device
    modes: tuple[str, ...]


@dataclass(frozen=True)
class RemoteMeter:
    """The meter of an agent."""

    name: str
    covers: str
    provenance: str
    is_recorder: bool


@dataclass(frozen=True)
class RemoteMeasurer:
    """A measurer whose device is elsewhere. Use it as a context manager.

    Attributes:
        rounds: Valid windows per trial.
        run: Identifies this run of Joulecast in observations.
        disturbances: How often windows were rejected, by the name of the fault.
        version: Version of Joulecast on the device.
        make_id: Returns the id of a request for a task and a trial. A client that names requests
            alike before and after it was killed gets what was measured meanwhile.
    """

    runtime: RemoteRuntime
    meter: RemoteMeter
    rounds: int
    run: str
    version: str
    connection: AgentConnection = field(repr=False)
    disturbances: Counter[str] = field(default_factory=Counter, compare=False)
    make_id: Callable[[str, Trial | None], str] = field(default=_make_id, repr=False)

    def __enter__(self) -> RemoteMeasurer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.connection.close()

    def now(self) -> float:
        """Return the time on the clock of windows; that of the agent for a simulated device."""
        return self.connection.now()

    def measure(self, trial: Trial) -> Observation:
        """Measure energy, duration, host time and memory of a trial.

        Raises:
            DeviceAwayError: The agent does not answer.
            JoulecastError: What measuring there raised.
        """
        return self._ask("measure", trial)

    def time(self, trial: Trial) -> Observation:
        """Measure duration and host time of a trial without its energy, which is quicker."""
        return self._ask("time", trial)

    def measure_idle(self) -> Observation:
        """Measure the idle device: return the observation of the empty network over one second."""
        return self._ask("idle")

    def make_refusal(self, trial: Trial, reason: str) -> Observation:
        """Return the observation of a trial that the device refuses: it has no values."""
        return describe_refusal(self, trial, reason)

    def change_run(self, run: str, rounds: int | None = None) -> RemoteMeasurer:
        """Return the measurer for another run, and perhaps with another number of rounds."""
        return replace(self, run=run, rounds=self.rounds if rounds is None else rounds)

    def _ask(self, task: str, trial: Trial | None = None) -> Observation:
        request = AgentRequest(self.make_id(task, trial), task, trial, self.rounds, self.run)
        answer = self.connection.ask(request)
        self.disturbances.update(answer.disturbances)
        observation = answer.take_observation(trial)
        return replace(observation, device=self.runtime.device)


class AgentConnection:
    """Asks an agent, again where the connection was lost."""

    def __init__(self, address: str, link: Link, limits: LinkLimits) -> None:
        self.address = address
        self._link = link
        self._limits = limits
        self._description: AgentDescription | None = None
        # Time that passed on the clock of an agent whose time is virtual, and its last reading.
        self._passed_s: float | None = None
        self._clock_s = 0.0

    def describe(self) -> AgentDescription:
        """Ask for the description of the device, once: whoever waits for it wants to know now."""
        answer = self._ask_once(AgentRequest(_make_id("describe"), "describe"))
        answer.raise_error()
        if answer.description is None:
            raise InputError(f"{self.address} does not describe its device: check the address")
        self._description = answer.description
        self._passed_s = 0.0 if answer.description.has_virtual_clock else None
        self._clock_s = answer.clock_s
        return answer.description

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
        if self._passed_s is not None:
            # The clock of an agent that was started again begins at 0.
            self._passed_s += max(0.0, answer.clock_s - self._clock_s)
            self._clock_s = answer.clock_s
        if answer.observation is not None:
            self._check_same(answer.observation)
        return answer

    def now(self) -> float:
        """Return the time on the clock of windows."""
        return time.monotonic() if self._passed_s is None else self._passed_s

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._link.close()

    def _check_same(self, observation: Observation) -> None:
        """Raise DeviceAwayError if the agent was restarted with something else."""
        known = self._description
        if known is None:
            return
        # How much memory is usable may change when the device is started.
        device = replace(known.device, memory_bytes=observation.device.memory_bytes)
        expected = (device, known.runtime, known.meter, known.covers, known.provenance)
        found = (observation.device, observation.runtime, observation.meter, observation.covers)
        if (*found, observation.provenance) != expected:
            raise DeviceAwayError(
                f"the agent at {self.address} was started anew with another device, framework, "
                "power mode or meter: run the same command again"
            )

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


def open_remote_measurer(
    address: str,
    token: str = "",
    *,
    rounds: int = 3,
    device_name: str = "",
    limits: LinkLimits | None = None,
) -> RemoteMeasurer:
    """Return a measurer of a device elsewhere; use it in a ``with`` statement.

    Args:
        address: ``http://host:port``, or ``ssh://user@host`` (see ``addresses``).
        token: The token of the agent; empty over ssh.
        rounds: Valid windows per trial.
        device_name: Name to record for the device instead of its own.
        limits: How long to wait.

    Raises:
        InputError: The address is none, or the agent refuses the token.
        DeviceAwayError: The agent does not answer.
    """
    parsed, limits = parse_address(address), limits or LinkLimits()
    if token:
        check_token(token, "the token")
    connection = AgentConnection(parsed.text, make_link(parsed, token, limits), limits)
    found = connection.describe()
    device = replace(found.device, name=device_name or found.device.name)
    return RemoteMeasurer(
        RemoteRuntime(found.runtime, device, found.modes),
        RemoteMeter(found.meter, found.covers, found.provenance, found.is_recorder),
        rounds,
        make_run(),
        found.version,
        connection,
    )
