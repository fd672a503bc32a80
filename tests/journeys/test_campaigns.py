"""End to end: on this machine, interrupted, and with a full disk."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli
from joulecast.store import open_store

pytestmark = pytest.mark.journey
PROGRAM = [sys.executable, "-c", "from joulecast.cli.main import main; main()"]
SIMULATED = ("profile", "cnn5", "--on", "simulated:3", "--points", "24")


@pytest.fixture
def environ(tmp_path):
    own = {"JOULECAST_STORE": str(tmp_path / "store.sqlite"), "XDG_CONFIG_HOME": str(tmp_path)}
    return {**os.environ, **own}


def run(environ, *words, **extra):
    return subprocess.run(
        [*PROGRAM, *words], env=environ, capture_output=True, text=True, check=False, **extra
    )


def run_json(environ, *words):
    done = run(environ, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def observed(environ):
    with open_store(environ["JOULECAST_STORE"], create=False) as store:
        own = [one for one in store.list_profiles() if not one.shipped]
        return store.load_observations(own[0].key) if own else ()


def test_this_machine_is_profiled_estimated_and_measured(environ, monkeypatch):
    """Run every step on the real processor, with the fewest points that can be fitted."""
    monkeypatch.setenv("JOULECAST_STORE", environ["JOULECAST_STORE"])
    monkeypatch.setenv("XDG_CONFIG_HOME", environ["XDG_CONFIG_HOME"])

    def ask(*words: str) -> str:
        done = CliRunner().invoke(cli, words, prog_name="joulecast")
        assert done.exit_code == 0, done.output
        return done.stdout

    how = ("--batch", "2", "--threads", "1")
    work = ("--on", "cpu", "--meter", "modelled", "--rounds", "1", "--json")
    learnt = json.loads(ask("profile", "lenet5:2,2,4,4", *how, *work, "--points", "6"))
    assert learnt["points"] == 6 and learnt["provenance"] == "modelled"
    answer = json.loads(ask("estimate", "lenet5:1,2,3,4", *how, "--json"))
    assert answer["provenance"] == "modelled" and answer["energy_j"] > 0
    seen = json.loads(ask("measure", "lenet5:1,2,3,4", *how, *work))
    assert seen["energy_j"] > 0 and seen["device"]["name"] == answer["device"]
    assert "modelled, not measured" in ask("estimate", "lenet5:1,2,3,4", *how)


def test_a_killed_campaign_loses_and_repeats_nothing(environ):
    started = subprocess.Popen([*PROGRAM, *SIMULATED], env=environ, stdout=subprocess.DEVNULL)
    while len(observed(environ)) < 5 and started.poll() is None:
        time.sleep(0.02)
    started.send_signal(signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL, "it ended before it could be killed"
    before = observed(environ)
    data = run_json(environ, *SIMULATED)
    after = observed(environ)
    assert after[: len(before)] == before
    # A layer may be measured twice: its time alone, and its energy. What looks wrong is repeated.
    loads = [(s.trial.key, s.energy_j is None) for s in after if s.trial.network.layers]
    assert len(loads) - len(set(loads)) == data["repeated"] and data["points"] == 24
    # Peaks of the device come first and are no points.
    anchors = len(set(loads)) - 24
    known = len([seen for seen in before if seen.trial.network.layers])
    assert anchors > 0 and data["new"] == 24 - (known - anchors)


def test_a_full_disk_is_one_line_and_keeps_observations(environ):
    assert run(environ, *SIMULATED[:-1], "4").returncode == 0
    before = observed(environ)
    size = Path(environ["JOULECAST_STORE"]).stat().st_size

    def fill_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = run(environ, *SIMULATED, preexec_fn=fill_disk)
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("joulecast: the store ")
    assert observed(environ)[: len(before)] == before
    assert run_json(environ, *SIMULATED)["points"] == 24
