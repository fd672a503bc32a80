"""A user's own ONNX file is run itself, with inputs drawn for it."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper

from joulecast.families import make_family
from joulecast.onnx_nets.net_file import OnnxFile
from joulecast.onnx_nets.ort_runtime import build_model, check_external_files
from joulecast.onnx_nets.ort_sessions import open_session, quantise_model
from joulecast.records import Input, Network, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.system.errors import FileError, InputError, NetError
from onnx_models import chain, external, integers, make_model, node, numbers, save

SETUP = Setup(batch=2, phase="inference", threads=1)
NETWORK = make_family("lenet5")
TRIAL = Trial(NETWORK, SETUP)


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
    session = open_session(model.SerializeToString(), SETUP)
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
    trial = Trial(replace(NETWORK, input=Input((6,), 4)), SETUP)
    (found,) = prepare(save(model, tmp_path / "net.onnx"), trial).read_outputs()
    assert {*found.ravel()} > {0.0}


def test_file_in_fp32_is_quantised_as_the_setup_says(file):
    trial = Trial(NETWORK, replace(SETUP, precision="int8"))
    exact, rounded = (prepare(file, one).read_outputs()[0] for one in (TRIAL, trial))
    assert 0 < np.abs(exact - rounded).max() < 0.2 * np.abs(exact).max()


def test_quantised_file_is_not_called_fp32(file):
    model, inputs = build_model(TRIAL)
    onnx.save(quantise_model(model, inputs, "int8"), file)
    prepare(file, Trial(NETWORK, replace(SETUP, precision="int8"))).close()
    with pytest.raises(InputError, match="8 bits already: give --precision int8"):
        prepare(file)


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


def test_training_is_refused(file):
    with pytest.raises(InputError, match="does not train"):
        prepare(file, Trial(NETWORK, Setup(batch=2)))


def test_graph_that_cannot_run_is_one_line(tmp_path):
    path = save(make_model(chain("Nonsense x -> y"), shape=(2, 3)), tmp_path / "net.onnx")
    trial = Trial(Network(NETWORK.layers, Input((3,))), SETUP)
    with pytest.raises(NetError, match="ONNX Runtime cannot run the network") as error:
        prepare(path, trial)
    assert "\n" not in str(error.value)


def test_weights_of_nodes_and_functions_are_checked(tmp_path):
    value = external("value", "../outside.bin", 1)
    constant = helper.make_node("Constant", [], ["c"], value=value)
    inside = helper.make_graph([constant], "inside", [], [])
    nested = node("If", "x", "y", then_branch=inside, else_branch=inside)
    opsets = [helper.make_opsetid("", 20)]
    function = helper.make_function("own", "F", [], ["c"], [constant], opsets)
    plain = helper.make_graph([], "plain", [], [])
    for graph, functions in (
        (inside, []),
        (helper.make_graph([nested], "g", [], []), []),
        (plain, [function]),
    ):
        model = helper.make_model(graph, functions=functions, opset_imports=opsets)
        with pytest.raises(FileError, match="outside of its folder: not run"):
            check_external_files(model, tmp_path / "net.onnx")
