"""ONNX files as NET, in every verb that takes a net."""

import importlib.util
import subprocess
import sys

import pytest

import joulecast
from joulecast.features import nets
from onnx_models import make_conv_net, make_model, node, save, weight

SIMULATED = ("--inference", "--on", "simulated:3")


@pytest.fixture
def net(shell):
    """Return the name of an ONNX file in the test's folder."""
    return save(make_conv_net(), shell.folder / "net.onnx").name


def test_inspect_shows_layers_and_counts(shell, net):
    text = shell("inspect", net, "--inference").stdout
    assert text.startswith("net: one inference, input 3x8x8, batch 1, inference, fp32")
    assert "conv2d 3→4 k3" in text and "everything belongs to a layer" in text
    shown = shell.json("inspect", net)
    assert shown["setup"]["batch"] == 32 and shown["buildable"]
    assert shown["counted"] == "independently"
    model = make_conv_net(shape=(4, 3, "height", "width"))
    name = save(model, shell.folder / "open.onnx").name
    assert "give the shape of one sample, like --input 3x224x224" in shell.fails("inspect", name)
    shown = shell.json("inspect", name, "--inference", "--input", "3x16x16")
    assert shown["input"]["shape"] == [3, 16, 16] and shown["setup"]["batch"] == 4


def test_files_that_cannot_be_read_are_one_line(shell):
    (shell.folder / "bad.onnx").write_bytes(b"")
    for words in (("inspect", "bad.onnx"), ("estimate", "bad.onnx", "--device", "nvidia-h200")):
        assert "is not an ONNX model" in shell.fails(*words)
    assert "there is no file nothing.onnx" in shell.fails("inspect", "nothing.onnx")


def test_the_network_of_a_file_can_be_stored_as_json(shell, net):
    shell("inspect", net, "--out", "net.json")
    stored = joulecast.inspect("net.json")
    assert stored == joulecast.inspect(net)
    assert stored.totals == joulecast.inspect(net).totals


def test_estimate_compare_measure_and_profile(shell, net):
    shell("profile", net, *SIMULATED, "--points", "6")
    estimated = shell.json("estimate", net, *SIMULATED)
    measured = shell.json("measure", net, *SIMULATED)
    assert estimated["energy_j"] == pytest.approx(measured["energy_j"], rel=0.2)
    table = shell("compare", net, "--inference", "--devices", "simulated-3", "--batch", "1").stdout
    assert "net on simulated-3" in table


def test_an_energy_log_may_name_a_file(shell, net):
    rows = "net,energy_j,duration_s,steps,batch\n" + f"{net},2.5,1.0,100,8\n" * 3
    (shell.folder / "runs.csv").write_text(rows)
    shell("data", "import", "runs.csv", "--device", "board")
    (observation, *_) = joulecast.load_profile("board").observations
    assert observation.trial.network == joulecast.inspect(net)


def test_the_package_onnx_may_be_missing(shell, net, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(nets, "find_spec", lambda name: None if name == "onnx" else find_spec(name))
    message = shell.fails("inspect", net)
    assert message.endswith("needs the package onnx: run pip install 'joulecast[onnx]'")


def test_reading_a_file_imports_neither_pytorch_nor_onnx_runtime(shell, net):
    code = (
        "import sys, joulecast; joulecast.inspect('net.onnx'); "
        "print(*sorted({'torch', 'onnxruntime', 'onnx'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=shell.folder, check=True
    )
    # onnx is imported by the worker alone.
    assert ran.stdout.split() == []


def test_a_network_that_cannot_be_rebuilt_says_what_runs_it(shell):
    nodes = [node("Conv", "x w", "c"), node("GlobalAveragePool", "c", "g"), node("Mul", "c g", "y")]
    save(make_model(nodes, [weight("w", 4, 3, 3, 3)]), shell.folder / "odd.onnx")
    words = ("--inference", "--on", "cpu", "--meter", "modelled")
    message = shell.fails("measure", "odd.onnx", *words)
    assert "run an ONNX file with --on onnx:cpu" in message
