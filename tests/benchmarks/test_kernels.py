"""Test the benchmark of phone kernels on made-up kernels; the published ones are not here."""

import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kernels" / "run.py"


@pytest.fixture(scope="module")
def run():
    spec = importlib.util.spec_from_file_location("kernels_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels_run"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["kernels_run"]


def write_kernels(path, count=60):
    draw = random.Random(0)
    lines = ["size,kernel,stride,channels_in,channels_out,energy_mj"]
    for _ in range(count):
        size, kernel = draw.choice((7, 14, 28)), draw.choice((1, 3))
        cin, cout = draw.randint(8, 256), draw.randint(8, 256)
        energy_mj = 1e-6 * size**2 * kernel**2 * cin * cout * (1 + 20 / cout) + 0.05
        lines.append(f"{size},{kernel},1,{cin},{cout},{energy_mj:.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_process_beats_lines_on_a_smooth_law(run, tmp_path, monkeypatch, capsys):
    data = write_kernels(tmp_path / "cpu.csv")
    arguments = ["run.py", "--cpu", str(data), "--seeds", "2", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", arguments)
    run.main()
    results = json.loads((tmp_path / "out" / "phones.json").read_text())
    methods = results["sets"]["cpu"]["methods"]
    assert methods["kernel-gp"]["mape"] < min(0.05, methods["flops-linear"]["mape"])
    assert 0.5 < methods["kernel-gp"]["coverage"] <= 1.0
    assert "kernel-gp" in capsys.readouterr().out
    # Figures only: no row of the data is stored.
    assert set(results["sets"]["cpu"]) == {"kernels", "methods"}


@pytest.mark.parametrize("text", [None, "a,b\n1,2\n", "size,kernel\n1,x\n"])
def test_wrong_file_is_refused_in_one_line(run, tmp_path, text):
    path = tmp_path / "wrong.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as caught:
        run.read_kernels(path)
    assert "columns" in str(caught.value) and "\n" not in str(caught.value)
