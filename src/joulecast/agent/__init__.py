"""Measure on devices elsewhere: an agent on the device takes trials and returns observations.

    coordinator                                       device
    RemoteMeasurer ──request (JSON)──▶ HTTP or ssh ──▶ AgentService ──▶ Measurer
                   ◀──answer (JSON)───                 one request at a time

addresses   addresses of agents: http://board:8377, ssh://user@board
tokens      the shared secret of an agent and its clients
messages    requests and answers
service     answer requests: check, measure, remember the last answers
server      requests over HTTP
stdio       requests over stdin and stdout, for ssh
command     the program on the device
links       connections of a client
client      a measurer whose device is elsewhere

While it measures, the agent does nothing else: it has one thread, polls nothing and writes no file.
A client that lost its connection asks again with the same id, and gets the answer that was made
meanwhile: no observation is lost or made twice. Only data is accepted, never code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulecast.agent.client import RemoteMeasurer, open_remote_measurer

__all__ = ["RemoteMeasurer", "open_remote_measurer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Most commands ask only whether a device is elsewhere.
    from joulecast.agent import client

    return getattr(client, name)
