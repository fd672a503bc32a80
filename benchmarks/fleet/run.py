"""Measure on many simulated devices at once: observations per second, overhead and memory.

    python benchmarks/fleet/run.py --store postgresql://USER@HOST/EMPTY --out results/fleet.json

Agents, PostgreSQL, coordinator, scheduler and workers are those that users run; only the devices
are simulated, whose time is virtual. Trials are listed beforehand (``listed_networks.py``), so that
no estimator computes between them. The same campaigns are run in one process without any of this,
and the difference per observation is the overhead of the fleet.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from listed_networks import ListedEstimator

from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.campaign import run_campaign
from joulecast.estimators.base import Target
from joulecast.families import draw_family
from joulecast.fleet.device_campaign import CampaignRequest
from joulecast.records import Network, Setup
from joulecast.store import Store, open_store

HERE = Path(__file__).parent
SETUP = Setup(batch=8)
PROGRAM = (sys.executable, "-c", "from joulecast.cli.main import main; main()")
ENTRY_POINT = "[joulecast.estimators]\nlisted = listed_networks:ListedEstimator\n"


def main() -> None:
    """Run the benchmark and write its results."""
    options = parse_options()
    networks = draw_networks(options.observations // options.devices - 1)
    conditions = describe_conditions()
    alone = run_alone(networks, options.alone)
    with tempfile.TemporaryDirectory() as folder, open_store(options.store) as store:
        fleet = run_fleet(store, Path(folder), networks, options)
    results = {"conditions": conditions, "alone": alone, "fleet": fleet}
    results["overhead_cpu_s"] = fleet["cpu_s_per_observation"] - alone["cpu_s_per_observation"]
    text = json.dumps(results, indent=2) + "\n"
    print(text)
    if options.out:
        Path(options.out).write_text(text)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--store", required=True, help="URL of an empty PostgreSQL database")
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--observations", type=int, default=20_000, help="in all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--alone", type=int, default=10, help="devices without a fleet")
    parser.add_argument("--out", help="file that receives the results")
    return parser.parse_args()


def draw_networks(count: int) -> tuple[Network, ...]:
    """Return different random networks."""
    rng = random.Random(1)
    found: dict[Network, None] = {}
    while len(found) < count:
        found[draw_family("lenet5", rng.randint)] = None
    return tuple(found)


def run_alone(networks: tuple[Network, ...], devices: int) -> dict[str, float]:
    """Run campaigns in this process, with a store in memory."""
    count, started_s, cpu_s = 0, time.monotonic(), time.process_time()
    for seed in range(devices):
        options = MeasureOptions(f"simulated:{seed}", rounds=1)
        with open_measurer(options) as measurer, open_store(":memory:") as store:
            target = Target(networks[0], SETUP, networks=networks)
            result = run_campaign(measurer, store, ListedEstimator(), target)
            count += len(store.load_observations(result.profile_key))
    return {
        "devices": devices,
        "observations": count,
        "cpu_s_per_observation": (time.process_time() - cpu_s) / count,
        "s_per_observation": (time.monotonic() - started_s) / count,
    }


def run_fleet(
    store: Store, folder: Path, networks: tuple[Network, ...], options: argparse.Namespace
) -> dict[str, Any]:
    """Run campaigns on a fleet; return how fast they were, and what they took."""
    environ = install_estimator(folder)
    with ExitStack() as stack:
        hosts = [stack.enter_context(start_agents(place, options)) for place in range(2)]
        devices = [one for _, addresses in hosts for one in addresses]
        file = write_fleet_file(folder, devices)
        words = ("fleet", "up", str(file), "--json", "--workers", str(options.workers))
        environ = {**environ, "JOULECAST_STORE": options.store}
        coordinator = stack.enter_context(
            start(*PROGRAM, *words, env=environ, stdout=subprocess.PIPE, text=True)
        )
        # It prints what devices answered once its workers run.
        assert coordinator.stdout is not None
        checks = json.loads("".join(iter(coordinator.stdout.readline, "}\n")) + "}")
        assert all(one["state"] == "ready" for one in checks["devices"])
        request = CampaignRequest(networks[0], SETUP, networks, estimator="listed", rounds=1)
        names = [one.name for one in store.fleet.list_devices()]
        watch = ProcessWatch(coordinator.pid, [host.pid for host, _ in hosts])
        key = store.fleet.add_request("benchmark", request.to_dict(), names)
        while (states := count_states(store, key))["done"] < len(names):
            if states["failed"]:
                raise RuntimeError(store.fleet.list_campaigns(key, ("failed",))[0].reason)
            watch.look()
            time.sleep(1.0)
        return {**summarise(store, watch), "devices": len(names), "workers": options.workers}


def summarise(store: Store, watch: ProcessWatch) -> dict[str, Any]:
    """Return how fast observations came, and what they took."""
    elapsed_s = time.monotonic() - watch.started_s
    profiles = [one for one in store.list_profiles() if not one.shipped]
    count = sum(one.observation_count for one in profiles)
    loads = [
        (one.key, seen.trial.key)
        for one in profiles
        for seen in store.load_observations(one.key)
        if seen.trial.network.layers
    ]
    return {
        "observations": count,
        "measured_twice": len(loads) - len(set(loads)),
        "elapsed_s": elapsed_s,
        "observations_per_s": count / elapsed_s,
        "cpu_s_per_observation": sum(watch.cpu_s().values()) / count,
        "cpu_s": watch.cpu_s(),
        "peak_memory_bytes": watch.peak_bytes,
    }


class ProcessWatch:
    """CPU time and memory of coordinator, workers and agents."""

    def __init__(self, coordinator: int, agents: Sequence[int]) -> None:
        self.started_s = time.monotonic()
        self.peak_bytes: Counter[str] = Counter()
        self._roles = {
            "coordinator": [psutil.Process(coordinator)],
            "workers": [
                one
                for one in psutil.Process(coordinator).children()
                if "spawn_main" in " ".join(one.cmdline())
            ],
            "agents": [psutil.Process(pid) for pid in agents],
        }
        self._first_s = self._sum_cpu()

    def look(self) -> None:
        """Note how much memory is used now."""
        for role, processes in self._roles.items():
            used = sum(one.memory_info().rss for one in processes)
            self.peak_bytes[role] = max(self.peak_bytes[role], used)

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU time of each role since the start."""
        return {role: now_s - self._first_s[role] for role, now_s in self._sum_cpu().items()}

    def _sum_cpu(self) -> dict[str, float]:
        return {
            role: sum(sum(one.cpu_times()[:2]) for one in processes)
            for role, processes in self._roles.items()
        }


@contextmanager
def start_agents(
    place: int, options: argparse.Namespace
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start one of two processes with half of the agents; yield it and their addresses."""
    count = options.devices // 2 + place * (options.devices % 2)
    first = place * (options.devices // 2)
    command = (sys.executable, str(HERE / "agents.py"), str(first), str(count))
    with start(*command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, [process.stdout.readline().strip() for _ in range(count)]


@contextmanager
def start(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a program, and end it with the block."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def install_estimator(folder: Path) -> dict[str, str]:
    """Let other processes find the estimator; return their environment."""
    info = folder / "listed_networks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: listed-networks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(HERE)))}


def write_fleet_file(folder: Path, addresses: Sequence[str]) -> Path:
    """Write the file of a fleet."""
    file = folder / "fleet.toml"
    tables = [
        f'[[device]]\nname = "device-{place:03}"\naddress = "{address}"\n'
        for place, address in enumerate(addresses)
    ]
    file.write_text("\n".join(tables))
    return file


def count_states(store: Store, key: str) -> Counter[str]:
    """Return how many campaigns are in each state."""
    return Counter(one.state for one in store.fleet.list_campaigns(key))


def describe_conditions() -> dict[str, Any]:
    """Return date, commit and machine of a run."""
    command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
