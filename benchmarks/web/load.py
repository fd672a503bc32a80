"""Load a dashboard on this machine: estimates per second, latencies and memory.

    python benchmarks/web/load.py --out benchmarks/web/results/two-cores.json

The server is `joulecast serve`, in a process of its own. 64 connections stay open, and each sends
its next request when it has its answer; moves of a slider come over one. The client is plain
asyncio, because it shares the processors with the server. For comparison: `/health`, which does
nothing, and `joulecast estimate`, a process for every estimate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

CONNECTIONS = 64
PROGRAM = (sys.executable, "-c", "from joulecast.cli.main import main; main()")
DEVICE = "nvidia-h200"
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
# Networks that the long run asks for again and again.
_REPEATED_KINDS = 200


def main() -> None:
    """Run all phases and write what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--distinct", type=int, default=200)
    parser.add_argument("--repeated", type=int, default=5_000)
    parser.add_argument("--health", type=int, default=5_000)
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--distinct-percent", type=int, default=1, help="of the long run")
    parser.add_argument("--programs", type=int, default=5)
    given = parser.parse_args()
    result: dict[str, Any] = describe_machine()
    with serve() as (port, process):
        draw = random.Random(1)
        asyncio.run(load(port, [make_query(draw)]))
        phases = {
            "moves": list(list_moves(given.moves)),
            "health": [HEALTH] * given.health,
            "repeated": [make_query(random.Random(2))] * given.repeated,
            "distinct": [make_query(draw) for _ in range(given.distinct)],
        }
        result["phases"] = {}
        for name, requests in phases.items():
            connections = 1 if name == "moves" else CONNECTIONS
            if requests:
                before_s = sum(process.cpu_times()[:2])
                found = asyncio.run(load(port, requests, connections))
                # Other programs may share the processors; this depends on them least.
                used_s = sum(process.cpu_times()[:2]) - before_s
                found["server_cpu_ms_per_request"] = 1e3 * used_s / len(requests)
                result["phases"][name] = found
                print(name, found, flush=True)
        if given.programs:
            result["programs"] = time_programs(given.programs)
            print("programs", result["programs"], flush=True)
        if given.long:
            result["memory"] = watch_memory(port, process, given.long, given.distinct_percent)
    given.out.write_text(json.dumps(result, indent=1) + "\n")


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load_before": os.getloadavg(),
        "connections": CONNECTIONS,
        "device": DEVICE,
    }


@contextmanager
def serve() -> Iterator[tuple[int, psutil.Process]]:
    """Start a dashboard; yield its port and its process."""
    words = [*PROGRAM, "serve", "--json", "--port", "0", "--rate-limit", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = json.loads("".join([*iter(process.stdout.readline, "}\n"), "}"]))["address"]
        try:
            yield int(address.rpartition(":")[2]), psutil.Process(process.pid)
        finally:
            process.terminate()


def make_query(draw: random.Random) -> bytes:
    """Return a request for the estimate of a random network."""
    widths = [draw.randint(8, 256) for _ in range(4)]
    return format_query(widths, draw.choice((16, 32, 64, 128, 256)))


def format_query(widths: list[int], batch: int) -> bytes:
    """Return a request for the estimate of a network."""
    net = f"cnn5:{','.join(map(str, widths))}"
    setup = {"batch": batch, "precision": "tf32"}
    body = json.dumps({"net": net, "device": DEVICE, "setup": setup}).encode()
    head = "POST /api/estimate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def list_moves(count: int) -> Iterator[bytes]:
    """Yield estimates of networks as the sliders of the page change them, one at a time."""
    draw, widths = random.Random(5), [64, 100, 90, 200]
    for number in range(count):
        place = number % len(widths)
        widths[place] = min(256, max(8, widths[place] + draw.choice((-16, -8, 8, 16))))
        yield format_query(widths, 64)


async def load(port: int, requests: list[bytes], connections: int = CONNECTIONS) -> dict[str, Any]:
    """Send all requests over a number of connections; return rate and latencies."""
    waiting, latencies_s, failures = iter(requests), [], 0

    async def send_all() -> None:
        nonlocal failures
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in waiting:
            start_s = time.perf_counter()
            writer.write(request)
            failures += await read_status(reader) != 200
            latencies_s.append(time.perf_counter() - start_s)
        writer.close()

    start_s = time.perf_counter()
    await asyncio.gather(*(send_all() for _ in range(min(connections, len(requests)))))
    duration_s = time.perf_counter() - start_s
    cuts = statistics.quantiles(latencies_s, n=100) if len(latencies_s) > 1 else latencies_s * 99
    return {
        "requests": len(requests),
        "failures": failures,
        "requests_per_s": len(requests) / duration_s,
        "p50_ms": 1e3 * cuts[49],
        "p99_ms": 1e3 * cuts[98],
    }


async def read_status(reader: asyncio.StreamReader) -> int:
    """Read an answer; return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    await reader.readexactly(length)
    return int(head.split(" ")[1])


def time_programs(count: int) -> dict[str, float]:
    """Return how long `joulecast estimate` takes, with the start of a process for each."""
    durations_s, draw = [], random.Random(3)
    for _ in range(count):
        widths = ",".join(str(draw.randint(8, 256)) for _ in range(4))
        words = ["estimate", f"cnn5:{widths}", "--device", DEVICE, "--precision", "tf32", "--json"]
        start_s = time.perf_counter()
        subprocess.run([*PROGRAM, *words], check=True, capture_output=True)
        durations_s.append(time.perf_counter() - start_s)
    return {"count": count, "median_s": statistics.median(durations_s)}


def watch_memory(
    port: int, process: psutil.Process, count: int, distinct_percent: int
) -> dict[str, Any]:
    """Send many requests of all kinds; return the resident memory after every tenth of them."""
    draw = random.Random(4)
    known = [make_query(random.Random(10 + number)) for number in range(_REPEATED_KINDS)]
    series, parts = [], 10
    for part in range(parts):
        requests = [
            choose_request(draw, known, index, distinct_percent) for index in range(count // parts)
        ]
        found = asyncio.run(load(port, requests))
        series.append(round(process.memory_info().rss / 2**20, 1))
        print(f"{(part + 1) * count // parts:,} requests: {series[-1]} MiB", found, flush=True)
        assert not found["failures"]
    return {"requests": count, "distinct_percent": distinct_percent, "resident_mib": series}


def choose_request(
    draw: random.Random, known: list[bytes], index: int, distinct_percent: int
) -> bytes:
    """Return a request of the long run: beside distinct ones, half are repeated, half `/health`."""
    if index % 100 < distinct_percent:
        return make_query(draw)
    return draw.choice(known) if index % 2 else HEALTH


if __name__ == "__main__":
    main()
