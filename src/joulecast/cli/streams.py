"""Where the program writes: results go to stdout, and everything else to stderr.

    joulecast ──result──▶ stdout
              ──messages, progress, whatever a net or a library prints──▶ stderr

While a command runs, ``sys.stdout`` is stderr, so that a ``print`` in a user's net does not mix
with a result, which a program may parse. A result that cannot be written is an error of one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from joulecast.system.errors import FileError
from joulecast.system.printable import make_printable
from joulecast.system.redaction import redact_url

_results: TextIO | None = None


class ReaderGoneError(Exception):
    """The program that reads stdout has ended, as ``head`` does after ten lines."""


def get_results() -> TextIO:
    """Return the stream of results: stdout, also while ``sys.stdout`` is stderr."""
    return _results if _results is not None else sys.stdout


def find_descriptor() -> int | None:
    """Return the file descriptor of the stream of results; None where it is not a file."""
    try:
        return get_results().fileno()
    except (AttributeError, OSError, ValueError):
        return None


@contextmanager
def reserve_results() -> Iterator[None]:
    """Let only results reach stdout while a command runs; also a decorator."""
    global _results
    before, stdout = _results, sys.stdout
    _results, sys.stdout = stdout, sys.stderr
    try:
        yield
    finally:
        _results, sys.stdout = before, stdout


def write_message(text: str) -> None:
    """Write a line to stderr, without passwords and control characters."""
    write_lines(make_printable(text))


def write_lines(text: str) -> None:
    """Write several lines to stderr, without passwords and control characters."""
    # There is nowhere left to say that stderr is closed or full.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(make_printable(redact_url(text), keep_newlines=True) + "\n")
        sys.stderr.flush()


def take_streams() -> None:
    """Let only results reach the process's stdout, whichever way others write to it.

    File descriptor 1 becomes stderr, because libraries in C and child processes know nothing of
    ``sys.stdout``. Closed descriptors are opened, because the next file would get their numbers,
    and what is printed would end up in that file.
    """
    is_closed = sys.stdout is None
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # The system gives the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    # Any encoding can then write any text.
    cast(Any, sys.stderr).reconfigure(errors="backslashreplace")
    results = os.fdopen(
        os.dup(1),
        "w",
        encoding=None if is_closed else sys.stdout.encoding,
        errors="backslashreplace",
    )
    os.dup2(2, 1)
    sys.stdout = cast(TextIO, ResultStream(results, is_closed))


class ResultStream:
    """A text stream that explains in one line why it cannot be written."""

    def __init__(self, stream: TextIO, is_closed: bool = False) -> None:
        self._stream = stream
        self._is_closed = is_closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, perhaps later."""
        if self._is_closed and text:
            raise FileError("stdout is closed: redirect it to a file, or to /dev/null")
        with self._explain_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write everything now."""
        with self._explain_errors():
            self._stream.flush()

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The rest goes nowhere, or Python would try again when it ends.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            if isinstance(error, BrokenPipeError):
                raise ReaderGoneError from error
            raise FileError(
                f"the result cannot be written to stdout ({error.strerror}): redirect it elsewhere"
            ) from error
