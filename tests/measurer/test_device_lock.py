"""One campaign on a device at a time, also across processes that are killed."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from joulecast.measurer.device_lock import hold_device, is_device_lost
from joulecast.system.errors import MeasurementError

HOLD = """
import subprocess, sys, time
from pathlib import Path
from joulecast.measurer.device_lock import hold_device
with hold_device("cpu", folder=Path(sys.argv[1])) as lock:
    if len(sys.argv) > 2:
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                                 stdin=subprocess.PIPE, pass_fds=(lock,))
        print(child.pid, flush=True)
    else:
        print("held", flush=True)
    time.sleep(60)
"""


def start_holder(folder, *words):
    command = [sys.executable, "-c", HOLD, str(folder), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def end(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_second_process_is_refused_with_the_id_of_the_first(tmp_path):
    process, _ = start_holder(tmp_path)
    try:
        with (
            pytest.raises(
                MeasurementError, match=rf"on cuda:0 \(process {process.pid}\)"
            ) as caught,
            hold_device("cpu", "cuda:0", tmp_path),
        ):
            raise AssertionError("the lock was given twice")
        assert "\n" not in str(caught.value)
        with hold_device("GPU-1", folder=tmp_path) as other:
            assert other is not None
    finally:
        end(process)


def test_lock_is_free_after_its_process_was_killed(tmp_path):
    process, _ = start_holder(tmp_path)
    end(process)
    with hold_device("cpu", folder=tmp_path) as lock:
        assert lock is not None


def test_process_that_inherited_the_lock_keeps_it(tmp_path):
    process, child = start_holder(tmp_path, "with a child")
    # The child lives as long as its input is open, which this process holds now.
    os.kill(int(child), signal.SIGSTOP)
    end(process)
    try:
        with pytest.raises(MeasurementError), hold_device("cpu", folder=tmp_path):
            pass
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_lock_can_be_taken_again_in_one_process(tmp_path):
    for _ in range(2):
        with hold_device("cpu", folder=tmp_path) as lock:
            assert os.pread(lock, 32, 0).decode().strip() == str(os.getpid())


def test_campaigns_run_where_no_lock_can_be_made(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with hold_device("cpu", folder=blocked / "locks") as lock:
        assert lock is None


def test_lock_is_waited_for(tmp_path):
    process, _ = start_holder(tmp_path)
    threading.Timer(0.3, end, [process]).start()
    with hold_device("cpu", folder=tmp_path, wait_s=20.0) as lock:
        assert lock is not None
    assert process.returncode is not None


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: out of memory", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_device_is_lost_after_some_errors_of_cuda(text, is_lost):
    assert is_device_lost(RuntimeError(text)) == is_lost and not is_device_lost(None)
    caused = MeasurementError("the step failed")
    caused.__cause__ = RuntimeError(text)
    assert is_device_lost(caused) == is_lost
