"""Agents as real processes, a slow device for them, and trials."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from joulecast.families import make_family
from joulecast.records import Setup, Trial

TOKEN = "a-token-that-only-these-tests-know"
# As the zipapp starts it; `joulecast agent` does the same and takes longer to import.
PROGRAM = (sys.executable, "-m", "joulecast.agent.command")

# A framework whose steps take time and no energy: `slow:MILLISECONDS`. Batch 13 breaks the device.
SLOW_DEVICE = """
import time
from joulecast.records import Device

class SlowStep:
    def __init__(self, step_s):
        self.step_s = step_s
    def run(self, count):
        time.sleep(count * self.step_s)
    def wait(self):
        pass
    def peak_memory_bytes(self):
        return 0
    def close(self):
        pass

class SlowRuntime:
    name = "slow-1.0"
    modes = ("eager",)
    def __init__(self, on):
        self.device = Device("slow device")
        self.step_s = float(on.partition(":")[2] or 20) / 1e3
    def prepare(self, trial):
        if trial.setup.batch == 13:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return SlowStep(self.step_s)
"""


@dataclass(frozen=True)
class RunningAgent:
    """An agent in a process of its own."""

    process: subprocess.Popen[str]
    address: str

    @property
    def listen(self) -> str:
        """Where it listens, to start another one there."""
        return self.address.removeprefix("http://")

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def start_agent(
    on: str = "simulated:3",
    *words: str,
    listen: str = "127.0.0.1:0",
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> Iterator[RunningAgent]:
    """Start an agent, wait until it listens, and end it with the block."""
    process = subprocess.Popen(
        [*program, "--on", on, "--listen", listen, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
        # A test run in the background of a shell ignores it, and so would the agent.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        ready = process.stderr.readline()
        assert "listening on http" in ready, ready
        address = ready.split()[-1]
        yield RunningAgent(process, address)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def wait_until(is_true: Callable[[], bool], what: str, limit_s: float = 400.0) -> None:
    """Wait for something that other processes do; ``what`` says that it never was."""
    end_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end_s, what
        time.sleep(0.1)


def make_trial(name: str = "lenet5:4,8,16,16", batch: int = 8) -> Trial:
    return Trial(make_family(name), Setup(batch=batch))


def install_slow_device(site: Path) -> dict[str, str]:
    """Install the slow device as a distribution; return the environment that finds it."""
    info = site / "slow_device-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "slow_device.py").write_text(SLOW_DEVICE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-device\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[joulecast.runtimes]\nslow = slow_device:SlowRuntime\n")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}
