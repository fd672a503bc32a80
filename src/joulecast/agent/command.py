"""The program on the device: ``python3 agent.pyz``, and what ``joulecast agent`` does.

    exit 0   the client over stdin is gone
    exit 1   one of our errors: one line on stderr that says what to do
    exit 2   wrong usage

After an error of CUDA a process can use its GPU no more: the program then starts itself anew.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

from joulecast.agent.addresses import DEFAULT_LISTEN, parse_listen, read_token
from joulecast.agent.messages import AgentDescription
from joulecast.agent.service import AgentService, serve_http, serve_stdio
from joulecast.system.errors import JoulecastError
from joulecast.system.printable import make_printable


def run_agent(
    answers: BinaryIO,
    on_ready: Callable[[str, AgentDescription], None],
    *,
    on: str = "cpu",
    meter: str = "auto",
    device_name: str = "",
    listen: str = DEFAULT_LISTEN,
    token_file: str = "",
    stdio: bool = False,
) -> None:
    """Answer requests until the process is ended, or the client over stdin is gone.

    Args:
        answers: With ``stdio``, gets the answers.
        on_ready: Called once the agent listens, with its address and what it measures on.
        on: A device of this machine, as ``joulecast measure --on`` takes it.
        meter: Name of a meter.
        device_name: Name to record for the device instead of the detected one.
        listen: Address and port.
        token_file: File with the token; by default the environment's.
        stdio: Answer over stdin and stdout instead of HTTP.

    Raises:
        InputError: An option cannot be used.
        MissingError: The device, the meter or the framework is not available.
    """
    # Before frameworks are imported, which takes long.
    place, token = parse_listen(listen), read_token(token_file)
    with AgentService(on, meter, device_name) as service:
        if stdio:
            serve_stdio(service, sys.stdin.buffer, answers)
            return
        found = service.describe()
        serve_http(service, place, token, lambda address: on_ready(address, found))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def describe_agent(address: str, description: AgentDescription) -> str:
    """Return a sentence that says what an agent measures on, and where it listens."""
    found = description
    return (
        f"Measuring on {found.device.name} with {found.runtime} and the meter {found.meter}; "
        f"listening on {address}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program of the zipapp."""
    parser = argparse.ArgumentParser(
        prog="agent.pyz",
        description="Measure trials that Joulecast sends from another machine.",
        allow_abbrev=False,
    )
    parser.add_argument("--on", default="cpu", help="cpu, cuda:0, mnn:cpu, onnx:cpu or simulated:7")
    parser.add_argument("--meter", default="auto", help="meter that is read")
    parser.add_argument("--device-name", default="", help="record the device under another name")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, help="address and port")
    parser.add_argument("--token-file", default="", help="file with the token that clients send")
    parser.add_argument("--stdio", action="store_true", help="answer over stdin and stdout")
    given = vars(parser.parse_args(arguments))
    # What libraries print must not mix with answers.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        try:
            run_agent(answers, _say_ready, **given)
        except JoulecastError as error:
            sys.exit(f"joulecast: {error}")
        except KeyboardInterrupt:
            sys.exit(130)


def _say_ready(address: str, description: AgentDescription) -> None:
    sys.stderr.write(f"{make_printable(describe_agent(address, description))}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
