"""ONNX files as NET, in every verb that takes a net."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import joulecast
from joulecast.features import nets
from joulecast.operators import network_work
from onnx_models import external, make_conv_net, make_model, node, save, weight

SIMULATED = ("--inference", "--on", "simulated:3")


@pytest.fixture
def net(shell):
    """Return the name of an ONNX file in the test's folder."""
    return save(make_conv_net(), shell.folder / "net.onnx").name


def test_inspect_shows_layers_and_counts(shell, net):
    text = shell("inspect", net, "--inference").stdout
    assert text.startswith("net: one inference, input 3x8x8, batch 1, inference, fp32")
    assert "conv2d 3→4 k3" in text
    assert "everything belongs to a layer" in text
    shown = shell.json("inspect", net, "--batch", "8")
    assert shown["setup"]["batch"] == 8
    assert shown["params"] == 4 * 3 * 9 + 4 + 4 * 10 + 10
    assert shown["counted"] == "independently"
    assert shown["flops"] == pytest.approx(sum(one["flops"]["total"] for one in shown["layers"]))
    assert shown["buildable"]


def test_training_takes_the_usual_batch_and_inference_one(shell, net):
    assert shell.json("inspect", net)["setup"]["batch"] == 32
    assert shell.json("inspect", net, "--inference")["setup"]["batch"] == 1
    save(make_conv_net(shape=(4, 3, 8, 8)), shell.folder / "fixed.onnx")
    assert shell.json("inspect", "fixed.onnx", "--inference")["setup"]["batch"] == 4


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


def test_open_sizes_need_an_input_shape(shell):
    model = make_conv_net(shape=("batch", 3, "height", "width"))
    name = save(model, shell.folder / "open.onnx").name
    assert "give the shape of one sample, like --input 3x224x224" in shell.fails("inspect", name)
    shown = shell.json("inspect", name, "--input", "3x16x16")
    assert shown["input"]["shape"] == [3, 16, 16]
    network = joulecast.inspect(name, input_shape=(3, 16, 16))
    assert network_work(network, joulecast.Setup(batch=32)).params == shown["params"]


def test_unknown_operators_are_named_in_estimates(shell, net):
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Wobble", "r", "y", domain="com.acme"),
    ]
    model = make_model(nodes, [weight("w", 4, 3, 3, 3)])
    shape = model.graph.output[0].type.tensor_type.shape
    for size in (0, 4, 8, 8):
        shape.dim.add(**({"dim_value": size} if size else {"dim_param": "batch"}))
    save(model, shell.folder / "odd.onnx")
    shell("profile", net, *SIMULATED, "--points", "6")
    text = " ".join(shell("estimate", "odd.onnx", *SIMULATED).stdout.split())
    assert "No cost rule for com.acme::Wobble (1 call)" in text
    assert "operators without a cost rule" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an ONNX model"),
        (make_conv_net().SerializeToString()[:-30], "is truncated or not an ONNX model"),
        (
            make_model(
                [node("MatMul", "x w", "y")], [external("w", "/etc/passwd", 4, 4)], ("n", 4)
            ).SerializeToString(),
            "is in '/etc/passwd', outside of the model's folder",
        ),
        (
            make_conv_net(shape=("n", 3, 10**9, 10**9)).SerializeToString(),
            "has 3e+18 elements, more than 1,000,000,000,000",
        ),
        (
            make_model([node("Relu", "\x1b[2J", "y")]).SerializeToString(),
            "reads '\\x1b[2J', which no earlier node computes",
        ),
    ],
)
def test_damaged_and_hostile_files_give_one_line(shell, content, message):
    (shell.folder / "bad.onnx").write_bytes(content)
    for verb in (("inspect",), ("estimate", "--device", "nvidia-h200")):
        assert message in shell.fails(verb[0], "bad.onnx", *verb[1:])


def test_a_missing_file_is_named(shell):
    assert "there is no file nothing.onnx" in shell.fails("inspect", "nothing.onnx")


def test_the_package_onnx_may_be_missing(shell, net, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(nets, "find_spec", lambda name: None if name == "onnx" else find_spec(name))
    message = shell.fails("inspect", net)
    assert message.endswith("needs the package onnx: run pip install 'joulecast[onnx]'")


def test_reading_a_file_imports_neither_pytorch_nor_onnx_runtime(shell, net):
    import subprocess

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
