"""ONNX Runtime: its contract, and trials that it refuses."""

from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime")

import onnx
import onnxruntime

from joulecast.devices.detect import detect_device
from joulecast.families import make_family
from joulecast.onnx_nets.ort_runtime import build_model
from joulecast.onnx_nets.ort_sessions import open_session
from joulecast.operators import input_shape, make_layer
from joulecast.records import Execution, Input, Network, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.system.errors import InputError, NetError
from joulecast.testing.runtimes import SMALL, RuntimeContract

INFERENCE = Setup(batch=2, phase="inference", threads=1)


class TestOnnxRuntime(RuntimeContract):
    stages = ("step", "forward")
    trains = False
    refuses_when_closed = True
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


def trial_of(kind, execution=None, precision="fp32", **sizes):
    """Return a trial of one layer."""
    layer = make_layer(kind, **sizes)
    network = Network((layer,), Input(input_shape(layer)))
    return Trial(network, replace(INFERENCE, precision=precision), execution or Execution())


ALONE = Execution(upstream="random")
LOG = {"fn": "log", "shape": (6,)}
LSTM = {"cin": 5, "hidden": 6, "tokens": 7}
RELU = {"fn": "relu", "shape": (1,)}


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        *(
            (Trial(SMALL.network, replace(INFERENCE, **setup)), InputError, message)
            for setup, message in (
                ({"phase": "train"}, "does not train: give --inference"),
                ({"precision": "fp16"}, "no kernels for fp16 on a processor: give fp32, int8 or"),
                ({"precision": "bf16"}, "no kernels for bf16"),
                ({"precision": "tf32"}, "no kernels for tf32"),
                ({"processor": "NNAPI"}, r"'NNAPI' \(this build .* has .*CPUExecutionProvider"),
                ({"cuda_graphs": True}, "no CUDA graphs"),
            )
        ),
        (Trial(SMALL.network, INFERENCE, Execution(mode="graph")), InputError, "use eager"),
        (trial_of("elementwise", **LOG), NetError, "not finite: not measured"),
        (
            trial_of("lstm", precision="int8", **LSTM),
            NetError,
            "no layer of the network with integers: measure it in fp32",
        ),
    ],
)
def test_what_it_cannot_run_is_refused(trial, error, message):
    with pytest.raises(error, match=message):
        open_runtime("onnx").prepare(trial)


@pytest.mark.parametrize(
    "trial",
    [
        Trial(SMALL.network, replace(INFERENCE, processor="CPUExecutionProvider")),
        # An isolated layer may be undefined for its input, and have no integer kernels.
        trial_of("elementwise", execution=ALONE, **LOG),
        trial_of("lstm", ALONE, "int8", **LSTM),
        # Campaigns measure an empty graph in every precision.
        trial_of("elementwise", precision="int8", **RELU),
        trial_of("elementwise", precision="int8_dynamic", **RELU),
    ],
)
def test_what_is_special_runs(trial):
    open_runtime("onnx").prepare(trial).close()


@pytest.mark.parametrize(
    ("kind", "sizes", "kernel"),
    [
        ("linear", {"cin": 6, "cout": 4}, "Gemm"),
        # Without weights, copies are equal: they must not be computed once for all.
        ("elementwise", {"fn": "tanh", "shape": (6,)}, "Tanh"),
    ],
)
@pytest.mark.parametrize(("upstream", "inputs"), [("loss", 3), ("random", 1)])
def test_copies_all_run(kind, sizes, kernel, upstream, inputs, tmp_path):
    execution = Execution(copies=3, upstream=upstream)
    model, batch = build_model(trial_of(kind, execution=execution, **sizes))
    assert len(batch) == inputs
    path = tmp_path / "optimised.onnx"
    open_session(model.SerializeToString(), INFERENCE, path, keeps_copies=True)
    assert [node.op_type for node in onnx.load(path).graph.node] == [kernel] * 3


def test_every_copy_converts_its_input_where_scales_are_dynamic():
    execution = Execution(copies=3, upstream="random")
    _, batch = build_model(trial_of("linear", execution, "int8_dynamic", cin=6, cout=4))
    assert len(batch) == 3


def test_equal_trials_have_equal_models():
    trial = Trial(SMALL.network, INFERENCE)
    first, again = build_model(trial), build_model(trial)
    assert first[0] == again[0]
    assert (first[1]["input_0"] == again[1]["input_0"]).all()
    other = build_model(Trial(SMALL.network, replace(INFERENCE, batch=3)))
    assert first[0] != other[0]
