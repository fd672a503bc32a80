"""Requests to an agent and its answers, as JSON.

    {"protocol": 1, "id": "7d0c…", "task": "measure", "trial": {…}, "rounds": 3, "run": "4f…"}
    {"protocol": 1, "id": "7d0c…", "observation": {…}, "clock_s": 81.2}
    {"protocol": 1, "id": "7d0c…", "error": {"name": "OutOfMemoryError", "message": "…"}, …}

An answer leaves the trial out, which the client knows. Errors travel by the names of their classes
in ``system.errors``. Both sides decode with the codec of records: whatever does not fit the type
and range of its field is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from joulecast.measurer.base import IDLE_TRIAL
from joulecast.records import MODES, Device, Observation, Record, Trial
from joulecast.records.codec import Choices, Count, Range, omit_default
from joulecast.records.observation import Provenance
from joulecast.system import errors
from joulecast.system.errors import InputError, JoulecastError, MeasurementError
from joulecast.system.files import first_line, parse_json

PROTOCOL = 1
MOST_REQUEST_BYTES = 8 * 2**20
"""Size of a request; a network of a thousand layers has half a MiB."""
MOST_ANSWER_BYTES = 2**20
TASKS = ("describe", "measure", "time", "idle")
_ID = re.compile(r"[0-9a-f]{8,64}")
_LONGEST_MESSAGE = 2000
_LONGEST_RUN = 1000

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class AgentRequest(Record):
    """What an agent is asked to do: asked again under the same id, it gives the same answer."""

    id: str
    task: Annotated[str, Choices(TASKS)]
    trial: Trial | None = omit_default(None)
    rounds: Annotated[int, Range(1, 1000)] = omit_default(3)
    run: str = omit_default("")

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise InputError("id of a request is not 8 to 64 hexadecimal digits")
        if len(self.run) > _LONGEST_RUN:
            raise InputError(f"run of a request is longer than {_LONGEST_RUN} characters")
        if (self.task in ("measure", "time")) != (self.trial is not None):
            raise InputError(f"trial of a request to {self.task} is missing, or has no use")


@dataclass(frozen=True)
class AgentDescription(Record):
    """The device, runtime and meter of an agent, and its version of Joulecast.

    Attributes:
        is_recorder: Energy comes later, from a power trace.
        has_virtual_clock: The device is simulated, and its time passes by measuring alone.
    """

    device: Device
    runtime: str
    modes: tuple[Annotated[str, Choices(MODES)], ...]
    meter: str
    covers: str
    provenance: Provenance
    is_recorder: bool = False
    has_virtual_clock: bool = False
    version: str = ""


@dataclass(frozen=True)
class SentError(Record):
    """An error of the agent: the name of its class in ``system.errors``, and its message."""

    name: str
    message: str


@dataclass(frozen=True)
class AgentAnswer(Record):
    """What an agent answers: one of a description, an observation and an error.

    Attributes:
        id: That of the request; empty where it could not be read.
        disturbances: How often windows were rejected for this answer, by the name of the fault.
        clock_s: The agent's clock of windows.
    """

    id: str
    description: AgentDescription | None = omit_default(None)
    observation: Observation | None = omit_default(None)
    error: SentError | None = omit_default(None)
    disturbances: Mapping[str, Count] = field(default_factory=dict)
    clock_s: Annotated[float, Range(0.0, 1e15)] = 0.0

    def take_observation(self, trial: Trial | None) -> Observation:
        """Return the observation, with the trial that the client asked for, or raise the error."""
        self.raise_error()
        if self.observation is None:
            raise MeasurementError("the agent returned no observation: check its version")
        return replace(self.observation, trial=trial or IDLE_TRIAL)

    def raise_error(self) -> None:
        """Raise the error of the answer, if there is one, as the class that it has there."""
        if self.error is not None:
            found: Any = getattr(errors, self.error.name, None)
            is_ours = isinstance(found, type) and issubclass(found, JoulecastError)
            raise (found if is_ours else MeasurementError)(self.error.message)


def describe_error(error: JoulecastError) -> SentError:
    """Return an error as it travels: by the nearest class that both sides know."""
    name = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    return SentError(name, str(error)[:_LONGEST_MESSAGE])


def encode_message(message: Record) -> bytes:
    """Return a request or an answer as one line of JSON."""
    data = {"protocol": PROTOCOL, **message.to_dict()}
    return json.dumps(data, separators=(",", ":")).encode()


def decode_message(cls: type[R], content: bytes, sender: str) -> R:
    """Return a request or an answer from what ``sender`` sent.

    Raises:
        InputError: It is damaged, or of another version of the protocol.
    """
    try:
        data = parse_json(content)
    except ValueError as error:
        raise InputError(f"{sender} sent what is not JSON ({first_line(error)})") from error
    if not isinstance(data, dict) or not isinstance(data.get("protocol"), int):
        raise InputError(f"{sender} sent what is not a message of Joulecast")
    protocol = data.pop("protocol")
    if protocol != PROTOCOL:
        raise InputError(
            f"{sender} uses version {protocol} of the protocol, this side version {PROTOCOL}: "
            "install the same version of Joulecast on both"
        )
    return cls.from_dict(data)
