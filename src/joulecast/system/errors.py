"""Define every error that Joulecast raises on purpose, grouped by what the caller can do.

    JoulecastError                 one line for the user; the command line exits with 1
    ├── InputError                 give something else: a network, a size, an option, a file
    │   ├── ArgumentError          an argument is missing, wrong by itself, or contradicts another
    │   ├── NetError               the network cannot be found, imported, run or rebuilt
    │   └── FileError              a profile or network file is damaged, foreign or too new
    ├── MissingError               make or install something first: a meter, a profile, a package
    ├── MeasurementError           try again: the measurement failed or is unreliable
    │   ├── ContaminatedError      something disturbed the device in every attempt
    │   ├── DeviceAwayError        the agent of a device does not answer: check it, then go on
    │   ├── DeviceLostError        the process can no longer use the device: start it again
    │   ├── MeterLostError         the meter can no longer be read: check it, then go on
    │   ├── NotTrainingError       the loss is not finite, or a weight did not change
    │   └── OutOfMemoryError       the trial does not fit on the device
    ├── BudgetSpentError           give more time: what was measured is kept
    └── StoreError                 the store cannot be read or written; it is unchanged

A message says what is wrong, with which value, and what to do. It is one line and safe to show:
passwords in URLs are left out, and control characters are escaped. Where it names an argument of a
verb, it does so with ``arg``: Python says ``steps=``, the command line ``--steps``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from joulecast.system.printable import make_printable
from joulecast.system.redaction import redact_url

if TYPE_CHECKING:
    from collections.abc import Callable

# Private-use characters, which no message has otherwise.
_ARGUMENT = re.compile("\ue000(\\w+)(?:\ue001([^\ue002]*))?\ue002")


def arg(name: str, value: object = None) -> str:
    """Return a mention of an argument, to be used in the message of an error.

    It reads ``steps`` or ``parallel='data'`` in Python, ``--steps`` or ``--parallel data`` on the
    command line.
    """
    return f"\ue000{name}\ue002" if value is None else f"\ue000{name}\ue001{value}\ue002"


def _mention_in_python(name: str, value: str | None) -> str:
    if value is None:
        return name
    is_literal = value in ("True", "False") or value.replace(".", "", 1).isdecimal()
    return f"{name}={value}" if is_literal else f"{name}={value!r}"


class JoulecastError(Exception):
    """Base class of all errors that Joulecast raises on purpose."""

    def __init__(self, message: str = "") -> None:
        self._message = " ".join(redact_url(str(message)).split())
        super().__init__(self.describe(_mention_in_python))

    @property
    def message(self) -> str:
        """The message with its mentions of arguments, to be a part of another message."""
        return self._message

    @property
    def mentions(self) -> list[str]:
        """Names of the arguments that the message mentions, in order."""
        return [found[1] for found in _ARGUMENT.finditer(self._message)]

    def describe(self, mention: Callable[[str, str | None], str]) -> str:
        """Return the message; ``mention`` writes an argument, given its name and value."""
        text = _ARGUMENT.sub(lambda found: mention(found[1], found[2]), self._message)
        return make_printable(text)


class InputError(JoulecastError):
    """An argument cannot be used."""


class ArgumentError(InputError):
    """An argument is missing, cannot be used whatever the rest is, or contradicts another."""


class NetError(InputError):
    """A network cannot be found, imported, run or rebuilt."""


class FileError(InputError):
    """A file is damaged, not written by Joulecast, or written by a newer version."""


class MissingError(JoulecastError):
    """Something that is needed does not exist yet."""


class MeasurementError(JoulecastError):
    """A measurement failed or is unreliable."""


class ContaminatedError(MeasurementError):
    """Something disturbed the device in every attempt."""


class DeviceAwayError(MeasurementError):
    """The agent of a device cannot be reached, or does not answer any more."""


class DeviceLostError(MeasurementError):
    """The device failed so badly that this process can no longer use it."""


class MeterLostError(MeasurementError):
    """The meter can no longer be read, whatever is measured."""


class NotTrainingError(MeasurementError):
    """The step ran but did not train the network."""


class OutOfMemoryError(MeasurementError):
    """The trial does not fit into the device's memory."""


class BudgetSpentError(JoulecastError):
    """The device time that was allowed is spent."""


class StoreError(JoulecastError):
    """The store cannot be read or written."""
