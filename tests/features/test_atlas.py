"""Workers that measure an atlas: real ones, and scripts that die, hang or report errors."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent_processes import wait_until
from joulecast.campaign.atlas import AtlasLimits
from joulecast.families import make_family
from joulecast.features.atlas import (
    WORKER_COMMAND,
    AtlasRequest,
    answer_request,
    measure_in_workers,
)
from joulecast.features.measurers import MeasureOptions
from joulecast.records import Device, Observation, Setup, Trial
from joulecast.store import open_store
from joulecast.system.errors import MeasurementError, MissingError

TRIAL = Observation(
    Trial(make_family("lenet5:4,6,24,16"), Setup()), device=Device("toy"), runtime="toy-1", count=0
)
# A worker that sends lines and then does something; the first of two ends as told.
SCRIPT = """
import os, signal, sys, time
folder, first, then = sys.argv[1:4]
run = os.path.join(folder, "second")
is_second = os.path.exists(run)
open(run, "w").close()
print(then if is_second else first, flush=True)
if not is_second:
    {end}
"""
DONE = json.dumps({"run": {"profile_key": "k", "new": 1, "stopped": "all tried", "elapsed_s": 1.0}})
PROGRESS = {"points": 5, "uncertainty_share": 0.0, "elapsed_s": 0.0, "left_s": None, "reason": "x"}
FIRST = "\n".join(
    json.dumps(one)
    for one in ({"profile": "k"}, {"progress": PROGRESS}, {"trial": TRIAL.to_dict()})
)


@pytest.fixture
def request_of(tmp_path):
    def make(**limits):
        store = str(tmp_path / "store.sqlite")
        return AtlasRequest(MeasureOptions(on="cpu", rounds=1), AtlasLimits(**limits), store)

    return make


def run_script(tmp_path, request, end, first=FIRST, then=DONE, **options):
    command = [sys.executable, "-c", SCRIPT.format(end=end), str(tmp_path), first, then]
    return measure_in_workers(request, command=command, **options)


def list_refusals(request):
    with open_store(request.store, create=False) as store:
        keys = [one.key for one in store.list_profiles() if not one.shipped]
        return [one.refusal for key in keys for one in store.load_observations(key)]


@pytest.mark.parametrize(
    ("end", "options", "reasons"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", {}, ("SIGKILL", "memory")),
        ("time.sleep(60)", {"silence_s": 5.0}, ("hung",)),
        ("raise SystemError('a broken library')", {}, ("a broken library",)),
    ],
)
def test_trial_that_ends_its_process_is_refused(tmp_path, request_of, end, options, reasons):
    request, told = request_of(), []
    run = run_script(tmp_path, request, end, on_progress=told.append, **options)
    assert (run.stopped, run.restarts) == ("all tried", 1) and [one.points for one in told] == [5]
    (refusal,) = list_refusals(request)
    assert all(reason in refusal for reason in reasons)


def test_trial_that_lost_the_device_is_not_refused_twice(tmp_path, request_of):
    request = request_of()
    with open_store(request.store):
        pass
    lost = "\n".join([FIRST, json.dumps({"lost": "CUDA error: misaligned address"})])
    assert run_script(tmp_path, request, "pass", first=lost).restarts == 1
    assert list_refusals(request) == []


def test_worker_imports_nothing_from_the_current_folder(tmp_path):
    (tmp_path / "json.py").write_text("open('was-run', 'w')")
    (tmp_path / "joulecast").mkdir()
    (tmp_path / "joulecast" / "__init__.py").write_text("open('was-run', 'w')")
    words = {"input": b"{", "cwd": tmp_path, "capture_output": True}
    done = subprocess.run(WORKER_COMMAND, check=False, **words)
    assert b"JSONDecodeError" in done.stderr
    assert not (tmp_path / "was-run").exists()


def test_no_process_shows_the_password_of_a_store(tmp_path, request_of):
    """Any user can list the arguments of all processes."""
    request = replace(request_of(), store="postgresql://ann:s3cret@db/lab")
    script = (
        "import sys; from pathlib import Path; secret = 's3' + 'cret'\n"
        "counts = [sys.stdin.read().count(secret)]\n"
        "counts.append(Path('/proc/self/cmdline').read_text().count(secret))\n"
        "sys.exit(f'request and arguments: {counts}')"
    )
    with pytest.raises(MeasurementError, match=r"request and arguments: \[1, 0\]"):
        measure_in_workers(request, command=[sys.executable, "-c", script])


def test_errors_of_a_worker_are_raised_here(tmp_path, request_of):
    error = json.dumps({"error": ["MissingError", "cuda:0 was not found"]})
    with pytest.raises(MissingError, match="cuda:0 was not found"):
        run_script(tmp_path, request_of(), "pass", first=error)


def test_processes_that_never_measure_end_the_campaign(request_of):
    command = [sys.executable, "-c", "import sys; sys.exit('no such library')"]
    with pytest.raises(MeasurementError, match=r"3 times in a row.*no such library"):
        measure_in_workers(request_of(), command=command)


def test_real_worker_measures_on_this_processor_and_resumes(request_of):
    request = request_of(networks=2, most_trials=5, seconds=300.0)
    first = measure_in_workers(request)
    assert (first.stopped, first.restarts) == ("every trial of the atlas was tried", 0)
    with open_store(request.store, create=False) as store:
        seen = store.load_observations(first.profile_key)
    assert all(one.provenance == "modelled" or one.meter != "modelled" for one in seen)
    assert sum(bool(one.trial.network.layers) for one in seen) >= 4
    told = []
    answer_request(request, told.append)
    assert not [one for one in told if "trial" in one]


def test_worker_stops_when_its_parent_was_killed(tmp_path, request_of):
    """Its lock and the device are free again soon."""
    request = request_of(networks=2, seconds=300.0)
    code = (
        "import sys; from joulecast.features.atlas import measure_in_workers\n"
        "from joulecast.features.atlas import AtlasRequest\n"
        "measure_in_workers(AtlasRequest.from_json(sys.argv[1]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, request.to_json()])
    try:
        wait_until(lambda: count_observations(request) >= 1, "nothing is measured")
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        workers = [Path("/proc") / child for child in children]
        assert [b"features.atlas" in (one / "cmdline").read_bytes() for one in workers] == [True]
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not any(map(is_running, workers)), "a worker goes on")


def count_observations(request):
    if not Path(request.store).exists():
        return 0
    with open_store(request.store, create=False) as store:
        return sum(one.observation_count for one in store.list_profiles() if not one.shipped)


def is_running(process: Path) -> bool:
    try:
        # A process that ended stays a zombie until its new parent has noticed.
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
