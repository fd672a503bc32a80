"""Say what is kept when the user interrupts a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

MEASUREMENTS_KEPT = "what was measured is stored; run it again to resume"
EXIT_INTERRUPTED = 130


class CommandInterruptedError(click.ClickException):
    """The user interrupted a command that leaves something behind."""

    exit_code = EXIT_INTERRUPTED


def keep_if(argument: str = "") -> Callable[[Mapping[str, Any]], str]:
    """Return what a command keeps: its measurements, if it has any because of an argument."""
    return lambda values: MEASUREMENTS_KEPT if not argument or values.get(argument) else ""


def keep_trials(values: Mapping[str, Any]) -> str:
    """Return what a search keeps: its trials, if it has a storage."""
    if values.get("train") is None:
        return ""
    if storage := values.get("storage"):
        return f"finished trials are in {storage}; run it again to continue"
    return "its trials are lost; give --storage to keep them"


@contextmanager
def report_interruption(kept: str) -> Iterator[None]:
    """Turn an interruption into an error that says what is kept."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not kept:
            raise
        # The terminal shows ^C on the line of the message otherwise.
        click.echo(err=True)
        raise CommandInterruptedError(f"interrupted: {kept}") from error
