"""ONNX Runtime: its contract, and trials that it refuses."""

import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime")

import onnx
import onnxruntime

from joulecast.devices.detect import detect_device
from joulecast.families import make_family
from joulecast.onnx_nets.ort_runtime import build_model
from joulecast.onnx_nets.ort_sessions import open_session
from joulecast.operators import make_layer
from joulecast.records import Execution, Input, Network, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.system.errors import InputError, NetError
from joulecast.testing.runtimes import SMALL, RuntimeContract

INFERENCE = Setup(batch=2, phase="inference", threads=1)


class TestOnnxRuntime(RuntimeContract):
    stages = ("step", "forward")
    trains = False
    small = Trial(SMALL.network, INFERENCE)

    def make_runtime(self):
        return open_runtime("onnx:cpu")

    def make_huge_trial(self):
        return Trial(make_family("cnn5:4096,4096,4096,4096"), replace(INFERENCE, batch=100_000))


@pytest.mark.parametrize("precision", ["int8", "int8_dynamic"])
def test_network_runs_in_8_bits(precision):
    step = open_runtime("onnx").prepare(
        Trial(make_family("lenet5"), replace(INFERENCE, precision=precision))
    )
    step.run(1)
    assert step.read_outputs()[0].shape == (2, 10)
    step.close()


def test_name_has_the_installed_version():
    runtime = open_runtime("onnx", "mine")
    assert runtime.name == f"onnxruntime-{onnxruntime.__version__}"
    assert runtime.device.name == "mine"
    assert open_runtime("onnx:cpu").device == detect_device("cpu")


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ({"phase": "train"}, "does not train: give --inference"),
        ({"precision": "fp16"}, "no kernels for fp16 on a processor: give fp32, int8 or"),
        ({"precision": "bf16"}, "no kernels for bf16"),
        ({"precision": "tf32"}, "no kernels for tf32"),
        ({"processor": "NNAPI"}, r"not on 'NNAPI' \(this build .* has .*CPUExecutionProvider"),
        ({"cuda_graphs": True}, "no CUDA graphs"),
    ],
)
def test_setup_that_it_lacks_is_refused(setup, message):
    with pytest.raises(InputError, match=message):
        open_runtime("onnx").prepare(Trial(SMALL.network, replace(INFERENCE, **setup)))


def test_graph_mode_is_refused_and_the_provider_may_be_named():
    trial = Trial(SMALL.network, INFERENCE, Execution(mode="graph"))
    with pytest.raises(InputError, match="use eager"):
        open_runtime("onnx").prepare(trial)
    setup = replace(INFERENCE, processor="CPUExecutionProvider")
    open_runtime("onnx").prepare(Trial(SMALL.network, setup)).close()


@pytest.mark.parametrize(
    ("layer", "kernel"),
    [
        (make_layer("linear", cin=6, cout=4), "Gemm"),
        # Without weights, copies are equal: they must not be computed once for all.
        (make_layer("elementwise", fn="tanh", shape=(6,)), "Tanh"),
    ],
)
@pytest.mark.parametrize(("upstream", "inputs"), [("loss", 3), ("random", 1)])
def test_copies_all_run(layer, kernel, upstream, inputs, tmp_path):
    execution = Execution(copies=3, upstream=upstream)
    model, batch = build_model(Trial(Network((layer,), Input((6,))), INFERENCE, execution))
    assert len(batch) == inputs
    path = tmp_path / "optimised.onnx"
    open_session(model.SerializeToString(), INFERENCE, path, keeps_copies=True)
    assert [node.op_type for node in onnx.load(path).graph.node] == [kernel] * 3


def test_every_copy_converts_its_input_where_scales_are_dynamic():
    layer = make_layer("linear", cin=6, cout=4)
    setup = replace(INFERENCE, precision="int8_dynamic")
    execution = Execution(copies=3, upstream="random")
    _, batch = build_model(Trial(Network((layer,), Input((6,))), setup, execution))
    assert len(batch) == 3


def test_isolated_layer_may_be_undefined_for_its_input():
    layer = make_layer("elementwise", fn="log", shape=(6,))
    trial = Trial(Network((layer,), Input((6,))), INFERENCE, Execution(upstream="random"))
    open_runtime("onnx").prepare(trial).close()


def test_equal_trials_have_equal_models():
    trial = Trial(SMALL.network, INFERENCE)
    first, again = build_model(trial), build_model(trial)
    assert first[0] == again[0]
    assert (first[1]["input_0"] == again[1]["input_0"]).all()
    other = build_model(Trial(SMALL.network, replace(INFERENCE, batch=3)))
    assert first[0] != other[0]


def test_output_that_is_not_finite_is_refused():
    # The logarithm of negative numbers.
    layer = make_layer("elementwise", fn="log", shape=(6,))
    with pytest.raises(NetError, match="not finite: not measured"):
        open_runtime("onnx").prepare(Trial(Network((layer,), Input((6,))), INFERENCE))


def test_network_without_integer_kernels_is_refused_in_8_bits():
    layer = make_layer("lstm", cin=5, hidden=6, tokens=7)
    trial = Trial(Network((layer,), Input((7, 5))), replace(INFERENCE, precision="int8"))
    with pytest.raises(NetError, match="no layer of the network with integers: measure it in fp32"):
        open_runtime("onnx").prepare(trial)
    # As a part of another network it is measured.
    open_runtime("onnx").prepare(replace(trial, execution=Execution(upstream="random"))).close()


@pytest.mark.parametrize("precision", ["int8", "int8_dynamic"])
def test_graph_without_products_runs_in_8_bits(precision):
    # Campaigns measure an empty graph in every precision.
    layer = make_layer("elementwise", fn="relu", shape=(1,))
    setup = replace(INFERENCE, precision=precision)
    open_runtime("onnx").prepare(Trial(Network((layer,), Input((1,))), setup)).close()


def test_closed_step_does_not_run():
    step = open_runtime("onnx").prepare(Trial(SMALL.network, INFERENCE))
    step.close()
    with pytest.raises(InputError, match="closed"):
        step.run(1)


def test_missing_onnx_runtime_is_named():
    script = "import sys; sys.modules['onnxruntime'] = None; " + (
        "from joulecast.runtimes import open_runtime; open_runtime('onnx')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "MissingError: measuring on onnx needs ONNX Runtime" in done.stderr
    assert "joulecast[onnx]" in done.stderr
