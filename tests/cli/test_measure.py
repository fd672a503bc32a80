"""``measure`` measures nets and commands, with meters that exist everywhere."""

import json
import sys
from dataclasses import replace

import psycopg
import pytest

from additive_examples import make_waiting
from joulecast.features.measure import StepMeasurement, measure_command
from joulecast.features.nets import ResolvedNet
from joulecast.meters import Meter, Reading
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store
from joulecast.system.errors import StoreError
from joulecast.testing.estimators import observe
from postgres_server import PASSWORD

NET = """
import torch
from torch import nn

def make_net():
    loss = lambda out: out.square().mean()
    return nn.Linear(4, 2), torch.ones(8, 4), loss
"""
BUSY = "import sys; sum(range(3 * 10**6)); print('hello'); sys.exit(3)"


def test_an_observation_is_stored_with_its_provenance(shell):
    data = shell.json("measure", "lenet5:2,2,8,8", "--on", "simulated:5", "--batch", "4")
    assert data["energy_j"] > 0 and data["duration_s"] > 0 and data["count"] == 3
    assert data["power_w"] == pytest.approx(data["energy_j"] / data["duration_s"])
    assert data["provenance"] == "simulated" and data["device"]["name"] == "simulated-5"
    with open_store(create=False) as store:
        seen = store.find_profile("simulated-5").observations
    assert [one.energy_j for one in seen] == [data["energy_j"]] and not data["source"]
    before = shell.snapshot()
    words = ("measure", "lenet5", "--on", "simulated:5", "--device-name", "mine", "--no-save")
    assert shell.json(*words)["store"] is None and shell.snapshot() == before
    text = shell(*words).stdout
    assert "(simulated)" in text and "on mine" in text


def refuse_measuring(*args):
    raise AssertionError("measured in vain")


def test_store_that_cannot_be_written_is_said_before_measuring(shell, monkeypatch, postgres_url):
    open_store(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    monkeypatch.setattr("joulecast.features.measure.measure_opened", refuse_measuring)
    words = ("measure", "lenet5", "--on", "simulated:5", "--store", postgres_url)
    message = shell.fails(*words)
    assert "it can be read but not written; allow writing" in message
    assert PASSWORD not in message


def test_result_is_printed_if_it_cannot_be_stored(shell, monkeypatch):
    def fail(*args):
        raise StoreError("the store s: there is no space left; free some")

    monkeypatch.setattr("joulecast.features.measure.save_observation", fail)
    result = shell("measure", "lenet5", "--on", "simulated:5", "--json", code=1)
    data = json.loads(result.stdout)
    assert data["energy_j"] > 0 and data["store"] is None
    assert result.stderr == "joulecast: the store s: there is no space left; free some\n"
    text = shell("measure", "lenet5", "--on", "simulated:5", code=1)
    assert "Stored in" not in text.stdout and "energy" in text.stdout


def test_the_users_own_module_is_measured(shell, write):
    write("net.py", NET)
    words = ("measure", "net.py:make_net", "--meter", "modelled", "--rounds", "1", "--threads", "1")
    data = shell.json(*words)
    assert data["setup"]["loss"] == "own" and data["setup"]["batch"] == 8
    assert data["provenance"] == "modelled" and data["energy_j"] > 0
    assert data["source"] == "own net"
    text = shell(*words).stdout
    assert "modelled, not measured" in text and "covers cpu at 10 W a core" in text


def test_what_a_meter_cannot_check_is_said(shell, monkeypatch):
    monkeypatch.setattr(SimulatedMeter, "provenance", "measured")
    text = shell("measure", "lenet5", "--on", "simulated:5").stdout
    assert "Not checked by this meter: other load, power limit, second sensor." in text
    with open_store(create=False) as store:
        (seen,) = store.find_profile("simulated-5").observations
    assert seen.unchecked == ("other load", "power limit", "second sensor")


def test_the_exit_code_of_a_command_is_passed_on(shell, capfd):
    words = ("measure", "--meter", "modelled:8W", "--json", "--", sys.executable, "-c", BUSY)
    result = shell(*words, code=3)
    data = json.loads(result.stdout)
    assert data["exit_code"] == 3 and data["provenance"] == "modelled"
    assert data["energy_j"] > 0, "the child's CPU time counts"
    assert data["power_w"] == pytest.approx(data["energy_j"] / data["duration_s"])
    assert "hello" in capfd.readouterr().err
    text = shell(*words[:3], "--", "sh", "-c", "kill -9 $$", code=137).stdout
    assert "(modelled)" in text and "exit code" in text


class FaultyMeter(Meter):
    """A meter that covers half a second and reports a fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def begin(self) -> None:
        pass

    def end(self) -> Reading:
        return Reading(5.0, 0.5, (self.fault,))


def test_energy_is_scaled_to_the_whole_command_unless_a_fault_is_serious():
    cost = measure_command(["true"], FaultyMeter("other load: pid 7"))
    assert cost.energy_j == pytest.approx(10.0 * cost.duration_s)
    assert cost.power_w == pytest.approx(10.0)
    assert measure_command(["true"], FaultyMeter("gap: 3 s are missing")).energy_j is None


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--", "no-such-program"], "no-such-program"),
        (["cnn5", "--on", "cuda:0,cuda:1"], "one device at a time"),
        (["cnn5", "--on", "tpu"], "cpu or cuda:0"),
        (["cnn5", "--on", "simulated:x"], "simulated:7"),
        (["cnn5", "--on", "simulated:1", "--meter", "rapl"], "--meter"),
        (["cnn5", "--meter", "crystal-ball"], "crystal-ball"),
        (["cnn5", "--meter", "file:nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_options_are_one_line(shell, words, part):
    assert part in shell.fails("measure", *words)


def test_passwords_of_a_command_are_not_in_its_result(shell):
    meter = "command:echo 5 W http://ann:s3cret@plug"
    url = "postgres://ann:s3cret@db"
    text = shell("measure", "--json", "--meter", meter, "--", "echo", url, code=1).stdout
    assert "s3cret" not in text
    assert "http://ann:***@plug" in text and "postgres://ann:***@db" in text


@pytest.mark.parametrize(
    ("waits", "issue_share", "said", "unsaid"),
    [
        ((), 0.99, "The host limits this step", "waits"),
        ((), 0.5, "meter", "The host limits"),
        ((0, 1), 0.99, "the host waits once per step", "The host limits"),
        ((2, 1), 0.5, "the host waits 3 times per step", "The host limits"),
    ],
)
def test_host_that_waits_does_not_limit_the_step(waits, issue_share, said, unsaid):
    network = make_waiting(*waits)
    one = observe(make_simulated_device(1, noise=0.0), Trial(network, Setup()))
    assert one.duration_s
    one = replace(one, covers="gpu", issue_s=issue_share * one.duration_s)
    report = str(StepMeasurement(ResolvedNet(network, 32), Setup(), one))
    assert said in report and unsaid not in report


@pytest.mark.parametrize(
    ("covers", "is_shown"),
    [
        ("gpu", True),
        ("cpu+gpu", True),
        ("board by jtop", True),
        ("cpu", False),
        ("cpu+dram", False),
    ],
)
def test_issue_time_is_not_shown_for_a_processor(covers, is_shown):
    network = make_waiting()
    one = observe(make_simulated_device(1, noise=0.0), Trial(network, Setup()))
    one = replace(one, covers=covers, issue_s=1e-4)
    report = str(StepMeasurement(ResolvedNet(network, 32), Setup(), one))
    assert ("issue time" in report) == is_shown
