"""ONNX Runtime: its contract, refusals, files of users, and sessions of kernels and 8 bits."""

import logging
import os
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper

from joulecast.families import make_family
from joulecast.onnx_nets.net_file import OnnxFile
from joulecast.onnx_nets.ort_runtime import (
    build_model,
    check_external_files,
    find_block_size,
    is_quantised,
    list_integer_kernels,
    open_session,
    open_without_conversions,
    optimise,
    quantise_model,
)
from joulecast.operators import input_shape, make_layer, make_op
from joulecast.records import Execution, Input, Network, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.system.errors import FileError, InputError, NetError
from joulecast.testing.runtimes import SMALL, RuntimeContract
from onnx_models import chain, external, integers, make_model, node, numbers, save

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


def trial_of(kind, execution=None, precision="fp32", **sizes):
    """Return a trial of one layer."""
    layer = make_layer(kind, **sizes)
    network = Network((layer,), Input(input_shape(layer)))
    return Trial(network, replace(INFERENCE, precision=precision), execution or Execution())


ALONE = Execution(upstream="random")
LOG = {"fn": "log", "shape": (6,)}
LSTM = {"cin": 5, "hidden": 6, "tokens": 7}
RELU = {"fn": "relu", "shape": (1,)}
TWICE = Execution(copies=2, upstream="random")
CHANNELS = 32
SIZES = {"cin": CHANNELS, "cout": 20, "space": (6, 6), "kernel": 3, "padding": 1}


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        *(
            (Trial(SMALL.network, replace(INFERENCE, **setup)), InputError, message)
            for setup, message in (
                ({"phase": "train"}, "does not train: give phase='inference'"),
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
        *(
            trial
            for precision in ("int8", "int8_dynamic")
            for trial in (
                Trial(make_family("lenet5"), replace(INFERENCE, precision=precision)),
                # Campaigns measure an empty graph in every precision.
                trial_of("elementwise", precision=precision, **RELU),
                trial_of("conv2d", TWICE, precision, **SIZES),
                trial_of("layer_norm", TWICE, precision, shape=(32, 6, 6)),
            )
        ),
    ],
)
def test_what_is_special_runs(trial):
    step = open_runtime("onnx").prepare(trial)
    step.run(1)
    assert all(one.size for one in step.read_outputs())
    step.close()


@pytest.mark.parametrize(
    ("kind", "sizes", "kernels"),
    [
        ("linear", {"cin": 6, "cout": 4}, ["Gemm"]),
        # Without weights, copies are equal: they must not be computed once for all.
        ("elementwise", {"fn": "logsigmoid", "shape": (6,)}, ["Sigmoid", "Log"]),
    ],
)
@pytest.mark.parametrize(
    ("upstream", "precision", "inputs"),
    # With dynamic scales, every copy converts its own input.
    [("loss", "fp32", 3), ("random", "fp32", 1), ("random", "int8_dynamic", 3)],
)
def test_copies_all_run(kind, sizes, kernels, upstream, precision, inputs):
    execution = Execution(copies=3, upstream=upstream)
    model, batch = build_model(trial_of(kind, execution, precision, **sizes))
    assert len(batch) == inputs
    optimised, _ = optimise(model, INFERENCE, keeps_copies=True)
    assert [node.op_type for node in optimised.graph.node] == kernels * 3


def test_equal_trials_have_equal_models():
    trial = Trial(SMALL.network, INFERENCE)
    first, again = build_model(trial), build_model(trial)
    assert first[0] == again[0]
    assert (first[1]["input_0"] == again[1]["input_0"]).all()
    other = build_model(Trial(SMALL.network, replace(INFERENCE, batch=3)))
    assert first[0] != other[0]


# -- a user's own file, with inputs drawn for it

NETWORK = make_family("lenet5")
TRIAL = Trial(NETWORK, INFERENCE)


def prepare(path, trial=TRIAL, sample=None):
    return OnnxFile(path, sample).prepare(open_runtime("onnx"), trial)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(build_model(TRIAL)[0], path)
    return path


def test_file_is_run_with_its_own_weights(file):
    step = prepare(file)
    step.run(1)
    (found,) = step.read_outputs()
    model = onnx.load(file)
    batch = np.random.default_rng(0).standard_normal((2, *NETWORK.input.shape)).astype("float32")
    session = open_session(model.SerializeToString(), INFERENCE)
    (expected,) = session.run(None, {"input_0": batch})
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_open_sizes_are_those_of_the_trial(tmp_path):
    shape = ("batch", "tokens", 8)
    nodes = [node("Cast", "attention_mask", "m", to=TensorProto.FLOAT)]
    nodes += chain("Unsqueeze m axes -> u; Mul x u -> y")
    mask = [("attention_mask", shape[:2])]
    model = make_model(nodes, [integers("axes", 2)], shape, more_inputs=mask)
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    step = prepare(save(model, tmp_path / "net.onnx"), sample=(5, 8))
    (found,) = step.read_outputs()
    assert found.shape == (2, 5, 8)
    # A mask of ones hides nothing.
    assert (found != 0).all()
    with pytest.raises(NetError, match="--input"):
        prepare(tmp_path / "net.onnx")


def test_tokens_are_of_the_vocabulary(tmp_path):
    model = make_model(
        chain("Gather table x -> y"), [numbers("table", *range(4), shape=(4,))], (2, 6)
    )
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    trial = Trial(replace(NETWORK, input=Input((6,), 4)), INFERENCE)
    (found,) = prepare(save(model, tmp_path / "net.onnx"), trial).read_outputs()
    assert {*found.ravel()} > {0.0}


def test_file_is_run_in_the_precision_of_the_setup(file):
    in_int8 = Trial(NETWORK, replace(INFERENCE, precision="int8"))
    exact, rounded = (prepare(file, one).read_outputs()[0] for one in (TRIAL, in_int8))
    assert 0 < np.abs(exact - rounded).max() < 0.2 * np.abs(exact).max()
    onnx.save(quantise_model(*build_model(TRIAL), "int8"), file)
    prepare(file, in_int8).close()
    with pytest.raises(InputError, match="8 bits already: give precision='int8'"):
        prepare(file)
    with pytest.raises(InputError, match="does not train"):
        prepare(file, Trial(NETWORK, Setup(batch=2)))


def test_weights_beside_the_file_are_read_and_others_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    path, weights = folder / "net.onnx", folder / "w.bin"
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 1024}
    onnx.save(build_model(TRIAL)[0], path, **options)
    prepare(path).close()
    weights.rename(tmp_path / "elsewhere.bin")
    with pytest.raises(FileError, match=r"'w\.bin', which is missing"):
        prepare(path)
    weights.symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(FileError, match=r"'w\.bin', outside of its folder: not run"):
        prepare(path)


def test_graph_that_cannot_run_is_one_line(tmp_path):
    path = save(make_model(chain("Nonsense x -> y"), shape=(2, 3)), tmp_path / "net.onnx")
    trial = Trial(Network(NETWORK.layers, Input((3,))), INFERENCE)
    with pytest.raises(NetError, match="ONNX Runtime cannot run the network") as error:
        prepare(path, trial)
    assert "\n" not in str(error.value)


def test_weights_of_nodes_and_functions_are_checked(tmp_path):
    value, opsets = external("value", "../outside.bin", 1), [helper.make_opsetid("", 20)]
    constant = helper.make_node("Constant", [], ["c"], value=value)
    inside, plain = (helper.make_graph(nodes, "g", [], []) for nodes in ([constant], []))
    branch = node("If", "x", "y", then_branch=inside, else_branch=inside)
    nested = helper.make_graph([branch], "nested", [], [])
    function = helper.make_function("own", "F", [], ["c"], [constant], opsets)
    for graph, functions in ((inside, []), (nested, []), (plain, [function])):
        model = helper.make_model(graph, functions=functions, opset_imports=opsets)
        with pytest.raises(FileError, match="outside of its folder: not run"):
            check_external_files(model, tmp_path / "net.onnx")


# -- sessions

SINGLE = replace(INFERENCE, batch=1)
TAIL = (make_op("batch_norm"), make_op("elementwise", fn="relu"))
CONV = make_layer("conv2d", TAIL, **SIZES)


def make_alone(layer, copies=1):
    execution = Execution(copies=copies, upstream="random")
    network = Network((layer,), Input((CHANNELS, 6, 6)))
    return build_model(Trial(network, SINGLE, execution))


def to_blocks(x, block):
    batch, channels, *space = x.shape
    x = x.reshape(batch, channels // block, block, *space)
    return np.ascontiguousarray(np.moveaxis(x, 2, -1)).reshape(batch, channels, *space)


def test_convolution_computes_the_same_on_blocks():
    model, inputs = make_alone(CONV)
    x = inputs["input_0"]
    (expected,) = open_session(model.SerializeToString(), SINGLE).run(None, {"input_0": x})
    session = open_without_conversions(model, SINGLE)
    (given,) = session.get_inputs()
    assert given.name != "input_0"
    block = find_block_size()
    (found,) = session.run(None, {given.name: to_blocks(x, block)})
    padded = -(-20 // block) * block
    assert found.shape == (1, padded, 6, 6)
    whole = np.zeros((1, padded, 6, 6), dtype="float32")
    whole[:, :20] = expected
    np.testing.assert_allclose(found, to_blocks(whole, block), atol=1e-5)


def test_copies_share_the_converted_input_and_other_layers_are_run_as_they_are():
    session = open_without_conversions(make_alone(CONV, copies=3)[0], SINGLE)
    assert (len(session.get_inputs()), len(session.get_outputs())) == (1, 3)
    layer = make_layer("elementwise", fn="tanh", shape=(CHANNELS, 6, 6))
    session = open_without_conversions(make_alone(layer)[0], SINGLE)
    assert [one.name for one in session.get_inputs()] == ["input_0"]


def test_convolution_in_8_bits_reads_and_writes_integers():
    model, inputs = make_alone(CONV)
    session = open_without_conversions(quantise_model(model, inputs, "int8"), SINGLE)
    (given,), (out,) = session.get_inputs(), session.get_outputs()
    assert (given.type, given.shape) == ("tensor(uint8)", [1, 6, 6, CHANNELS])
    assert (out.type, out.shape) == ("tensor(uint8)", [1, 6, 6, 20])


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_threads_are_those_of_the_setup(threads):
    model = make_alone(CONV)[0].SerializeToString()
    session = open_session(model, Setup(threads=threads))
    options = session.get_session_options()
    expected = threads or len(os.sched_getaffinity(0))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (expected, 1)
    assert session.get_providers() == ["CPUExecutionProvider"]


CONVOLUTIONS = "resnet18:8,1,1,1,1"


def make_family_model(name):
    return build_model(Trial(make_family(name), replace(SINGLE, batch=2)))


@pytest.mark.parametrize(
    ("name", "precision", "kernel"),
    [
        (CONVOLUTIONS, "int8", "QLinearConv"),
        (CONVOLUTIONS, "int8_dynamic", "ConvInteger"),
        ("transformer:32,1", "int8", "QGemm"),
        ("transformer:32,1", "int8_dynamic", "DynamicQuantizeMatMul"),
        ("lstm:16,2", "int8_dynamic", "DynamicQuantizeLSTM"),
    ],
)
def test_layers_run_with_integers_and_give_nearly_the_same(name, precision, kernel):
    model, inputs = make_family_model(name)
    quantised = quantise_model(model, inputs, precision)
    assert [is_quantised(one) for one in (model, quantised)] == [False, True]
    # Norms would otherwise run in fp32, between conversions.
    assert "BatchNormalization" not in {node.op_type for node in quantised.graph.node}
    (plain, exact), (optimised, rounded) = (optimise(one, SINGLE) for one in (model, quantised))
    assert list_integer_kernels(plain) == []
    assert kernel in list_integer_kernels(optimised)
    expected, found = (session.run(None, dict(inputs))[0] for session in (exact, rounded))
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert 0 < error < 0.15


def test_advice_of_the_quantiser_is_not_logged(caplog):
    quantise_model(*make_family_model("lenet5"), "int8")
    assert caplog.records == []
    logging.getLogger().warning("shown")
    assert [one.message for one in caplog.records] == ["shown"]
