"""Answer requests over stdin and stdout: one line of JSON each, for agents started by ssh."""

from __future__ import annotations

from contextlib import suppress
from typing import BinaryIO

from joulecast.agent.messages import MOST_REQUEST_BYTES
from joulecast.agent.service import AgentService, refuse_request
from joulecast.errors import InputError


def serve_stdio(service: AgentService, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the client is gone, or the device is lost.

    Args:
        service: Answers requests.
        requests: One request per line.
        answers: Gets one answer per line.
    """
    # The client is gone: there is nobody left to tell.
    with suppress(BrokenPipeError):
        while line := requests.readline(MOST_REQUEST_BYTES + 1):
            is_whole = line.endswith(b"\n")
            answers.write(service.answer(line) if is_whole else _refuse_large())
            answers.write(b"\n")
            answers.flush()
            # What follows a line that is too long is not the start of another.
            if service.is_lost or not is_whole:
                return


def _refuse_large() -> bytes:
    return refuse_request(
        InputError(f"the request is larger than {MOST_REQUEST_BYTES // 2**20} MiB, or incomplete")
    )
