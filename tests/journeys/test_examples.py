"""Every example runs and prints what it should."""

import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.journey
EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = {
    "demo.py": (["--seconds", "3", "--seed", "1"], ["Side by side", "measured", "interval"]),
    "language_model.py": ([], ["mJ per generated token", "J per request (measured, 95 %"]),
    "own_net.py": ([], ["layers: conv2d, conv2d", "(simulated, 95 % interval"]),
    "search_small_task.py": ([], ["ruled out before training", "accuracy", "(simulated, 95 %"]),
    "trainer.py": (["--steps", "12"], ["12 steps took", "(modelled)", "(95 % interval"]),
}


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", sorted(RUNS))
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    """In this process, which has imported PyTorch already."""
    words, expected = RUNS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *words])
    # The demo chooses its own store.
    monkeypatch.setenv("JOULECAST_STORE", "")
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    out = capsys.readouterr().out
    assert all(text in out for text in expected), out
    assert not list(tmp_path.iterdir())
