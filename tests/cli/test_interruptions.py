"""An interrupted command says what is kept, if anything is."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

KEPT = "interrupted: what was measured is stored; run it again to resume"
SEARCH = ("search", "lenet5", "--budget", "110%", "--device", "nvidia-h200")
SEARCH += ("--train", "train.py:score")
PROGRAM = [sys.executable, "-c", "from joulecast.cli.main import main; main()"]
SLOW = """
import time
from pathlib import Path

def make_net():
    Path("started").touch()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("module", "function", "words", "says"),
    [
        ("meters", "detect_meters", ("detect",), "interrupted"),
        ("features.estimate", "load_profile", ("estimate", "lenet5"), "interrupted"),
        ("features.profile", "probe_layers", ("estimate", "lenet5", "--probe"), KEPT),
        ("features.profile", "run_profiling", ("profile", "lenet5"), KEPT),
        ("features.atlas", "profile_atlas", ("profile", "--atlas"), KEPT),
        ("features.evaluation", "measure_and_evaluate", ("evaluate", "lenet5"), KEPT),
        ("features.measure", "measure_net", ("measure", "lenet5"), "interrupted"),
        ("features.prune", "load_profile", ("prune", "lenet5", "--budget", "50%"), "interrupted"),
        ("features.prune", "_make_probe", ("prune", "lenet5", "--budget", "50%", "--probe"), KEPT),
        (
            "features.search.study",
            "run_study",
            SEARCH,
            "interrupted: its trials are lost; give --storage",
        ),
        (
            "features.search.study",
            "run_study",
            (*SEARCH, "--storage", "sqlite:///s.db"),
            "interrupted: finished trials are in sqlite:///s.db; run it again to continue",
        ),
    ],
)
def test_an_interrupt_says_what_is_kept(shell, write, monkeypatch, module, function, words, says):
    def interrupt(*args, **extra):
        raise KeyboardInterrupt

    write("train.py", "def score(net, trial): return 1.0")
    monkeypatch.setattr(f"joulecast.{module}.{function}", interrupt)
    line = shell(*words, code=130).stderr.splitlines()[-1]
    assert line.startswith(f"joulecast: {says}")
    assert says != "interrupted" or line == "joulecast: interrupted"


def test_ctrl_c_in_an_estimate_claims_nothing_that_was_measured(shell, write):
    write("slow.py", SLOW)
    words = [*PROGRAM, "estimate", "slow.py:make_net", "--device", "nvidia-h200"]
    started = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while not (shell.folder / "started").exists() and started.poll() is None:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 130
    assert errors.split("\n")[-2] == "joulecast: interrupted"
