"""Commands on devices that run MNN or ONNX Runtime."""

import pytest

from joulecast.devices.detect import detect_device
from joulecast.families import make_family
from joulecast.records import Setup, Trial
from joulecast.store import open_store

NET = "lenet5:2,3,8,8"
BRIEFLY = ("--inference", "--on", "onnx:cpu", "--threads", "1", "--meter", "modelled")


@pytest.mark.parametrize(
    ("package", "runtime", "words"),
    [
        ("MNN", "mnn", ("--threads", "1", "--estimator", "flops")),
        ("onnxruntime", "onnx", ("--inference", "--threads", "1")),
    ],
)
def test_profile_and_estimate_use_one_framework(shell, package, runtime, words):
    pytest.importorskip(package)
    here = ("--runtime", runtime, *words)
    brief = ("--points", "3", "--rounds", "1", "--meter", "modelled")
    done = shell.json("profile", NET, *here, *brief)
    estimate = shell.json("estimate", NET, *here)
    assert estimate["runtime"] == done["profile"]["runtime"]
    assert estimate["runtime"].startswith(f"{package.lower()}-")
    assert shell.json("estimate", NET, "--on", f"{runtime}:cpu", *words) == estimate
    with open_store(create=False) as store:
        summaries = store.list_matches(detect_device("cpu").name)
        assert [one.runtime for one in summaries] == [estimate["runtime"]]
    assert "has no profile yet" in shell.fails("estimate", NET, "--on", "cpu", *words)


def test_kind_that_mnn_cannot_train_is_one_line(shell):
    pytest.importorskip("MNN")
    line = shell.fails("measure", "transformer:16,1", "--on", "mnn")
    assert "layer block0.sdpa: MNN cannot train sdpa" in line


def test_users_own_file_is_run_in_int8(shell):
    pytest.importorskip("onnxruntime")
    import onnx

    from joulecast.onnx_nets.ort_runtime import build_model

    model, _ = build_model(Trial(make_family(NET), Setup(batch=1, phase="inference")))
    onnx.save(model, shell.folder / "net.onnx")
    found = shell.json("measure", "net.onnx", *BRIEFLY, "--rounds", "1", "--precision", "int8")
    assert found["source"] == "own net" and found["setup"]["precision"] == "int8"
    line = shell.fails("measure", NET, *BRIEFLY, "--processor", "CUDAExecutionProvider")
    assert "not on 'CUDAExecutionProvider'" in line and "CPUExecutionProvider" in line
    assert "ONNX Runtime does not train: give --inference" in shell.fails(
        "measure", NET, *BRIEFLY[1:]
    )
