"""Every example runs and prints what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.journey
EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = {
    "demo.py": (["--seconds", "6", "--seed", "1"], ["Side by side", "measured", "interval"]),
    "language_model.py": ([], ["mJ per generated token", "J per request (measured, 95 %"]),
    "own_net.py": ([], ["layers: conv2d, conv2d", "(simulated, 95 % interval"]),
    "search_small_task.py": ([], ["ruled out before training", "accuracy", "(simulated, 95 %"]),
}


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", sorted(RUNS))
def test_an_example_runs(name, tmp_path):
    words, expected = RUNS[name]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in expected), done.stdout
    assert not list(tmp_path.iterdir())
