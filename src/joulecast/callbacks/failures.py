"""Keep errors of ours out of other people's training: one warning, then silence."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from joulecast.printable import make_printable

F = TypeVar("F", bound=Callable[..., Any])

LOGGER = logging.getLogger("joulecast.training")


class Abandonable(Protocol):
    """An object whose methods may fail without harm."""

    has_failed: bool

    def abandon(self, error: str) -> None:
        """Release what it holds, after an exception of this name."""


def never_fail(method: F) -> F:
    """Return a method that warns once if it raises, and does nothing from then on.

    All such methods of an object are silent after the first failure: what follows would rest on
    a state that is not known. Its ``abandon`` then releases what it holds. Interruptions by the
    user pass.
    """

    @functools.wraps(method)
    def call(self: Abandonable, *args: Any, **kwargs: Any) -> Any:
        if self.has_failed:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # whatever it is, training goes on
            self.has_failed = True
            LOGGER.warning(
                "Energy is no longer measured, and training goes on: %s: %s",
                type(error).__name__,
                make_printable(" ".join(str(error).split())),
            )
            LOGGER.debug("The error was:", exc_info=error)
            try:
                self.abandon(type(error).__name__)
            except Exception as second:  # of the same cause, most likely
                LOGGER.debug("Cleaning up failed as well:", exc_info=second)
            return None

    return cast(F, call)


def show_messages() -> None:
    """Let messages of callbacks reach the user, unless the program configures logging itself."""
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("joulecast: %(message)s"))
        LOGGER.addHandler(handler)
