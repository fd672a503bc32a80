"""A fleet on Dask and PostgreSQL is profiled while its programs are killed at random."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agent_processes import TOKEN, start_agent, wait_until
from joulecast.store import open_store

pytestmark = pytest.mark.journey
PROGRAM = [sys.executable, "-c", "from joulecast.cli.main import main; main()"]
NET = ("lenet5:4,6,8,8", "--batch", "2", "--threads", "1")
LIMITS = ("--points", "8", "--rounds", "1")
DEVICES = {f"board-{seed}": f"simulated:{seed}" for seed in (1, 2, 3)}


class DeviceProcess:
    """The program of a device, started anew when it was killed, as the device's system does."""

    def __init__(self, on, environ):
        self._on, self._environ, self._started = on, environ, ExitStack()
        self.agent = self._started.enter_context(start_agent(on, environ=environ))
        self.started_s = 0.0

    def restart(self):
        """Kill it as a power cut would, and start it again where it was."""
        self.stop()
        self.started_s = time.time()
        again = start_agent(self._on, listen=self.agent.listen, environ=self._environ)
        self.agent = self._started.enter_context(again)

    def stop(self):
        """Kill it."""
        self._started.close()


class Coordinator:
    """The program ``joulecast fleet up``."""

    def __init__(self, file, environ):
        self._command = [*PROGRAM, "fleet", "up", str(file), "--workers", "2"]
        self._environ = environ
        self._log = (file.parent / "fleet.log").open("a")
        self.start()

    def start(self):
        """Start it."""
        self._process = subprocess.Popen(
            self._command, env=self._environ, stdout=self._log, stderr=self._log
        )

    def list_workers(self):
        """Return the processes of Dask's workers."""
        own = self._process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        found = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
        return [int(pid) for pid, command in found.items() if "spawn_main" in command]

    def kill_worker(self, rng):
        """Kill one worker, if there is one at the moment."""
        workers = self.list_workers()
        if workers:
            os.kill(rng.choice(workers), signal.SIGKILL)

    def restart(self):
        """Kill scheduler and coordinator, which are one program, and start them again."""
        self._process.kill()
        self._process.wait()
        self.start()

    def stop(self):
        """Stop it as a service is stopped."""
        self._process.terminate()
        assert self._process.wait(60) == 0
        self._log.close()


@contextmanager
def start_fleet(folder, environ):
    with ExitStack() as stack:
        agents = {}
        for name, on in DEVICES.items():
            agents[name] = DeviceProcess(on, environ)
            stack.callback(agents[name].stop)
        file = folder / "fleet.toml"
        tables = [
            f'[[device]]\nname = "{name}"\naddress = "{one.agent.address}"\nbattery_wh = 10\n'
            for name, one in agents.items()
        ]
        file.write_text("\n".join(tables))
        coordinator = Coordinator(file, environ)
        stack.callback(coordinator.stop)
        yield agents, coordinator


def run(environ, *words):
    done = subprocess.run(
        [*PROGRAM, *words], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read_observations(store):
    """Return the observations of every device."""
    names = {one.profile_key: one.name for one in store.fleet.list_devices()}
    return {names[key]: store.load_observations(key) for key in names if key}


def test_killed_programs_lose_nothing_and_double_nothing(postgres_url, tmp_path):
    own = {"JOULECAST_STORE": postgres_url, "JOULECAST_TOKEN": TOKEN}
    environ = {**os.environ, **own, "XDG_CONFIG_HOME": str(tmp_path)}
    rng = random.Random(15)
    with start_fleet(tmp_path, environ) as (agents, coordinator):
        with open_store(postgres_url) as store:
            wait_until(store.fleet.is_up, "the fleet does not come up")
            run(environ, "fleet", "profile", *NET, *LIMITS, "--detach", "--json")
            seen = kill_at_random(rng, agents, coordinator, store)
            wait_until(lambda: are_done(store), "campaigns do not end")
            final = read_observations(store)
        for name in DEVICES:
            measured_s, stored_s = compare_times(agents[name], final[name])
            assert measured_s == pytest.approx(stored_s), name
        answer = run(environ, "fleet", "estimate", *NET, "--steps", "1000", "--json")
    for name, before in seen.items():
        assert set(before) <= set(map(repr, final[name])), f"{name} lost observations"
    found = {one["name"]: one for one in answer["devices"]}
    assert set(found) == set(DEVICES)
    assert all(one["energy_j"] > 0 and one["can_finish"] for one in found.values())
    # Three laws, three answers.
    assert len({one["energy_j"] for one in found.values()}) == len(DEVICES)


def are_done(store):
    states = Counter(one.state for one in store.fleet.list_campaigns())
    assert not states["failed"], [one.reason for one in store.fleet.list_campaigns()]
    return states["done"] == len(DEVICES)


def kill_at_random(rng, agents, coordinator, store):
    """Kill workers, agents and the coordinator; return what was stored before each time."""
    seen = {}
    victims = ["worker", "agent", "coordinator", "agent"]
    rng.shuffle(victims)
    for victim in victims:
        count = count_observations(store)
        wait_until(
            lambda count=count: count_observations(store) > count or are_done(store), "no progress"
        )
        seen.update(
            {name: list(map(repr, each)) for name, each in read_observations(store).items()}
        )
        if victim == "worker":
            coordinator.kill_worker(rng)
        elif victim == "agent":
            agents[rng.choice(list(DEVICES))].restart()
        else:
            coordinator.restart()
    return seen


def count_observations(store):
    return sum(map(len, read_observations(store).values()))


def compare_times(device, observations):
    """Return how long a device measured, and how long that took which is stored of it.

    Time of a simulated device passes by measuring alone, so both are the same unless something was
    measured and lost, or stored twice. A device that was started anew begins at 0.
    """
    question = {"protocol": 1, "id": uuid.uuid4().hex, "task": "describe"}
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    asked = urllib.request.Request(device.agent.address, json.dumps(question).encode(), headers)
    with urllib.request.urlopen(asked) as answer:
        measured_s = json.load(answer)["clock_s"]
    return measured_s, sum(one.cost_s for one in observations if one.taken_at_s > device.started_s)
