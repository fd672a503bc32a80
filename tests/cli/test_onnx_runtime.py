"""Commands on a device that runs ONNX Runtime."""

import pytest

pytest.importorskip("onnxruntime")

import onnx

from joulecast.families import make_family
from joulecast.onnx_nets.ort_runtime import build_model
from joulecast.records import Setup, Trial

NET = "lenet5:2,3,8,8"
HERE = ("--inference", "--on", "onnx:cpu", "--threads", "1")
BRIEFLY = (*HERE, "--meter", "modelled", "--rounds", "1")


def test_profile_and_estimate_use_one_framework(shell):
    done = shell.json("profile", NET, *BRIEFLY, "--points", "3")
    assert done["profile"]["runtime"].startswith("onnxruntime-")
    estimate = shell.json("estimate", NET, *HERE)
    assert estimate["runtime"] == done["profile"]["runtime"]
    again = ("--inference", "--threads", "1", "--runtime", "onnx")
    assert shell.json("estimate", NET, *again) == estimate
    line = shell.fails("estimate", NET, "--inference", "--on", "cpu", "--threads", "1")
    assert "has no profile yet" in line


@pytest.mark.parametrize("precision", ["fp32", "int8", "int8_dynamic"])
def test_latency_is_measured(shell, precision):
    found = shell.json("measure", NET, *BRIEFLY, "--precision", precision)
    assert found["duration_s"] > 0
    assert found["setup"]["precision"] == precision


def test_users_own_file_is_run(shell):
    model, _ = build_model(Trial(make_family(NET), Setup(batch=1, phase="inference")))
    onnx.save(model, shell.folder / "net.onnx")
    assert shell.json("measure", "net.onnx", *BRIEFLY)["source"] == "own net"


def test_training_is_refused_in_one_line(shell):
    assert "ONNX Runtime does not train: give --inference" in shell.fails(
        "measure", NET, "--on", "onnx:cpu", "--meter", "modelled"
    )


def test_other_processor_is_refused_with_those_available(shell):
    line = shell.fails("measure", NET, *BRIEFLY, "--processor", "CUDAExecutionProvider")
    assert "not on 'CUDAExecutionProvider'" in line
    assert "CPUExecutionProvider" in line
