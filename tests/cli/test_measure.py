"""``measure``: nets and commands, under meters that are there everywhere."""

from __future__ import annotations

import sys

import pytest

from joulecast.cli.measure import run_command
from joulecast.errors import OutOfMemoryError
from joulecast.meters import Meter, Reading
from joulecast.store import open_store

NET = """
import torch
from torch import nn

def make_net():
    loss = lambda out: out.square().mean()
    return nn.Linear(4, 2), torch.ones(8, 4), loss
"""
BUSY = "import sys; sum(range(3 * 10**6)); print('hello'); sys.exit(3)"


def test_a_net_is_measured_kept_and_marked(shell):
    data = shell.json("measure", "lenet5:2,2,8,8", "--on", "simulated:5", "--batch", "4")
    assert data["energy_j"] > 0 and data["duration_s"] > 0 and data["count"] == 3
    assert data["power_w"] == pytest.approx(data["energy_j"] / data["duration_s"])
    assert data["basis"] == "simulated" and data["device"]["name"] == "simulated-5"
    with open_store(create=False) as store:
        seen = store.find_profile("simulated-5").observations
    assert [one.energy_j for one in seen] == [data["energy_j"]]


def test_what_is_simulated_says_so(shell):
    text = shell("measure", "lenet5", "--on", "simulated:5", "--device", "mine").stdout
    assert "(simulated)" in text and "on mine" in text


def test_nothing_is_kept_where_nothing_shall_be(shell):
    before = shell.snapshot()
    data = shell.json("measure", "lenet5", "--on", "simulated:5", "--no-save")
    assert data["store"] is None and shell.snapshot() == before


def test_a_net_of_ones_own_is_what_runs(shell, write):
    write("net.py", NET)
    words = ("measure", "net.py:make_net", "--meter", "modelled", "--rounds", "1", "--threads", "1")
    data = shell.json(*words)
    assert data["setup"]["loss"] == "own" and data["setup"]["batch"] == 8
    assert data["basis"] == "modelled" and data["energy_j"] > 0
    assert data["source"] == "own net"
    text = shell(*words).stdout
    assert "modelled, not measured" in text and "covers cpu at 10 W a core" in text


def test_what_is_built_anew_has_no_source(shell):
    assert not shell.json("measure", "lenet5:2,2,8,8", "--on", "simulated:5")["source"]


def test_a_command_is_run_and_its_exit_code_passed_on(shell, capfd):
    words = ("measure", "--meter", "modelled:8W", "--json", "--", sys.executable, "-c", BUSY)
    result = shell(*words, code=3)
    import json

    data = json.loads(result.stdout)
    assert data["exit_code"] == 3 and data["basis"] == "modelled"
    assert data["energy_j"] > 0, "the child's CPU time counts"
    assert data["power_w"] == pytest.approx(data["energy_j"] / data["duration_s"])
    assert "hello" in capfd.readouterr().err


def test_a_command_for_people(shell):
    text = shell("measure", "--meter", "modelled", "--", sys.executable, "-c", "pass").stdout
    assert "(modelled)" in text and "exit code 0" in text


def test_a_signal_is_an_exit_code_too(shell):
    shell("measure", "--", "sh", "-c", "kill -9 $$", code=137)


class FaultyMeter(Meter):
    """Sees half of the time, and something that is wrong."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def begin(self) -> None:
        pass

    def end(self) -> Reading:
        return Reading(5.0, 0.5, (self.fault,))


def test_joules_hold_for_the_whole_command():
    cost = run_command(["true"], FaultyMeter("other load: pid 7"))
    assert cost.energy_j == pytest.approx(10.0 * cost.duration_s)
    assert cost.power_w == pytest.approx(10.0)


def test_what_the_meter_cannot_tell_is_not_told():
    assert run_command(["true"], FaultyMeter("gap: 3 s are missing")).energy_j is None


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--", "no-such-program"], "no-such-program"),
        (["cnn5", "--on", "cuda:0,cuda:1"], "one device at a time"),
        (["cnn5", "--on", "cuda:0", "--on", "cuda:1"], "one device at a time"),
        (["cnn5", "--on", "tpu"], "cpu or cuda:0"),
        (["cnn5", "--on", "simulated:x"], "simulated:7"),
        (["cnn5", "--on", "simulated:1", "--meter", "rapl"], "--meter"),
        (["cnn5", "--meter", "crystal-ball"], "crystal-ball"),
        (["cnn5", "--meter", "file:nowhere.csv"], "nowhere.csv"),
        (["cnn5", "--on", "simulated:1", "--rounds", "0"], "rounds is 0"),
    ],
)
def test_what_cannot_be_measured_is_one_line(shell, words, part):
    assert part in shell.fails("measure", *words)


def test_out_of_memory_is_one_line(shell, monkeypatch):
    def refuse(self, trial):
        raise OutOfMemoryError("the step does not fit: use a smaller batch or net")

    monkeypatch.setattr("joulecast.runtimes.simulated.SimulatedRuntime.prepare", refuse)
    assert "smaller batch" in shell.fails("measure", "cnn5", "--on", "simulated:1")
