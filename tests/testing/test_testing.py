"""Contract suites fail for what breaks the contract, and helpers of benchmarks."""

import subprocess
from dataclasses import replace

import pytest

from benchmarks.common import find_commit, find_processor
from joulecast.meters import GuardedMeter, Reading
from joulecast.simulation import make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.testing.meters import MeterContract
from joulecast.testing.runtimes import RuntimeContract


class WrongMeter(GuardedMeter):
    """A meter that returns a given reading."""

    name, covers = "wrong", "cpu"

    def __init__(self, reading):
        self._reading = reading

    def _start(self):
        pass

    def _stop(self):
        return self._reading


@pytest.mark.parametrize(
    ("reading", "test"),
    [
        (Reading(-1.0, 3.0), "test_constant_load_is_read_without_faults"),
        (Reading(1.0, 3.0, ("gap",)), "test_constant_load_is_read_without_faults"),
        (Reading(1.0, 9.0), "test_constant_load_is_read_without_faults"),
        (Reading(1.0, 2.0, ("odd",)), "test_faults_of_an_empty_window_have_known_names"),
        (Reading(1.0, 2.0), "test_windows_are_independent_and_energy_grows_with_them"),
    ],
)
def test_meter_contract_rejects(reading, test):
    class Contract(MeterContract):
        def make_meter(self):
            return WrongMeter(reading)

        def load(self, duration_s):
            pass

    with pytest.raises(AssertionError):
        getattr(Contract(), test)()


def test_runtime_contract_rejects_a_device_without_a_name():
    class Contract(RuntimeContract):
        def make_runtime(self):
            runtime = SimulatedRuntime(make_simulated_device(0))
            runtime.device = replace(runtime.device, name="")
            return runtime

    with pytest.raises(AssertionError):
        Contract().test_runtime_names_itself_and_its_device()


def test_processor_has_a_name():
    assert isinstance(find_processor(), str)


def test_commit_is_marked_by_changes_outside_results(tmp_path):
    script = tmp_path / "run.py"

    def git(*arguments):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *names, *arguments], check=True)

    (tmp_path / "results").mkdir()
    for file in (script, tmp_path / "results" / "kept.json"):
        file.write_text("1")
    assert find_commit(str(script)) == ""
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    commit = find_commit(str(script))
    assert len(commit) >= 7 and not commit.endswith("+")
    (tmp_path / "results" / "kept.json").write_text("2")
    (tmp_path / "new.txt").write_text("2")
    assert find_commit(str(script)) == commit
    script.write_text("2")
    assert find_commit(str(script)) == commit + "+"
