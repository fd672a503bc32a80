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


def save_graph(path, nodes, inputs, outputs, weights=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def save_apart(path):
    """Save a model with its weights in another file."""
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 1024}
    onnx.save(build_model(TRIAL)[0], path, **options)


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
    shape = ["batch", "tokens", 8]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, shape[:2])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m", "axes"], ["u"]),
        helper.make_node("Mul", ["x", "u"], ["y"]),
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [2])
    save_graph(tmp_path / "net.onnx", nodes, [x, mask], [out], [axes])
    step = prepare(tmp_path / "net.onnx", sample=(5, 8))
    (found,) = step.read_outputs()
    assert found.shape == (2, 5, 8)
    # A mask of ones hides nothing.
    assert (found != 0).all()
    with pytest.raises(NetError, match="--input"):
        prepare(tmp_path / "net.onnx")


def test_tokens_are_of_the_vocabulary(tmp_path):
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [2, 6])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 6, 3])
    table = np.arange(12, dtype="float32").reshape(4, 3)
    weight = onnx.numpy_helper.from_array(table, "table")
    nodes = [helper.make_node("Gather", ["table", "tokens"], ["y"])]
    save_graph(tmp_path / "net.onnx", nodes, [tokens], [out], [weight])
    network = replace(NETWORK, input=Input((6,), 4))
    (found,) = prepare(tmp_path / "net.onnx", Trial(network, SETUP)).read_outputs()
    assert {*found[..., 0].ravel()} > {0.0}


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


def test_weights_beside_the_file_are_read(tmp_path):
    path = tmp_path / "net.onnx"
    save_apart(path)
    prepare(path).close()
    (tmp_path / "w.bin").unlink()
    with pytest.raises(FileError, match=r"'w\.bin', which is missing"):
        prepare(path)


def test_link_out_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "net.onnx"
    save_apart(path)
    (folder / "w.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "w.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(FileError, match=r"'w\.bin', outside of its folder: not run"):
        prepare(path)


def test_training_is_refused(file):
    with pytest.raises(InputError, match="does not train"):
        prepare(file, Trial(NETWORK, Setup(batch=2)))


def test_graph_that_cannot_run_is_one_line(tmp_path):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    save_graph(tmp_path / "net.onnx", [helper.make_node("Nonsense", ["x"], ["y"])], [x], [y])
    trial = Trial(Network(NETWORK.layers, Input((3,))), SETUP)
    with pytest.raises(NetError, match="ONNX Runtime cannot run the network") as error:
        prepare(tmp_path / "net.onnx", trial)
    assert "\n" not in str(error.value)


def test_weights_of_nodes_and_functions_are_checked(tmp_path):
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
    value.ClearField("float_data")
    value.data_location = TensorProto.EXTERNAL
    value.external_data.add(key="location", value="../outside.bin")
    node = helper.make_node("Constant", [], ["c"], value=value)
    inside = helper.make_graph([node], "inside", [], [])
    nested = helper.make_node("If", ["x"], ["y"], then_branch=inside, else_branch=inside)
    opsets = [helper.make_opsetid("", 20)]
    function = helper.make_function("own", "F", [], ["c"], [node], opsets)
    plain = helper.make_graph([], "plain", [], [])
    for graph, functions in (
        (inside, []),
        (helper.make_graph([nested], "g", [], []), []),
        (plain, [function]),
    ):
        model = helper.make_model(graph, functions=functions, opset_imports=opsets)
        with pytest.raises(FileError, match="outside of its folder: not run"):
            check_external_files(model, tmp_path / "net.onnx")
