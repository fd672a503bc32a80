"""Run the agents of many simulated devices in one process, each on a port of its own.

    python benchmarks/fleet/agents.py FIRST COUNT      prints one address per line

A real device has a process for its agent. Two hundred of them on one machine would compete for its
memory, and are not what is measured.
"""

from __future__ import annotations

import sys
import threading

from joulecast.agent.service import AgentOptions, AgentService, serve_http


def main() -> None:
    """Start the agents, print their addresses, and answer until the process is ended."""
    first, count = map(int, sys.argv[1:])
    ready = threading.Semaphore(0)
    addresses = [""] * count

    def serve(place: int) -> None:
        def tell(address: str, *_: object) -> None:
            addresses[place] = address
            ready.release()

        service = AgentService(AgentOptions(f"simulated:{first + place}"))
        serve_http(service, ("127.0.0.1", 0), on_ready=tell)

    for place in range(count):
        threading.Thread(target=serve, args=(place,), daemon=True).start()
    for _ in range(count):
        ready.acquire()
    print("\n".join(addresses), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
