"""ONNX files of others: damaged and hostile ones are refused in one line, and no file is opened."""

import os
import random
import sys

import onnx
import pytest
from onnx import TensorProto, helper

from joulecast.errors import FileError, InputError
from joulecast.input_files import read_limited
from joulecast.runtimes.onnx_files import model_file
from joulecast.runtimes.onnx_files.model_file import decode_numbers, read_model
from joulecast.runtimes.onnx_files.net_file import read_onnx_net
from joulecast.testing.hostile_inputs import damage_bytes, find_defect
from onnx_models import (
    external,
    integers,
    make_conv_net,
    make_model,
    node,
    save,
    weight,
)


@pytest.fixture
def opened_files():
    """Return the list of paths that this process opens from now on."""
    paths = []
    is_on = [True]

    def hook(event, args):
        if is_on[0] and event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            paths.append(os.fsdecode(args[0]))

    sys.addaudithook(hook)
    yield paths
    is_on[0] = False  # a hook cannot be removed


def make_linear(tensor):
    return make_model([node("MatMul", "x w", "y")], [tensor], ("batch", 4))


def test_a_truncated_file_is_refused(tmp_path):
    content = make_conv_net().SerializeToString()
    path = tmp_path / "net.onnx"
    refused = 0
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        assert find_defect(lambda: read_onnx_net(path)) is None
        try:
            read_onnx_net(path)
        except FileError:
            refused += 1
    assert refused == len(range(0, len(content), 7))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not an ONNX model"),
        (b"{}\n", "not an ONNX model"),
        (b'{"format": "joulecast-network"}', "not an ONNX model"),
        (b"\x08\x09", "not an ONNX model"),
        (random.Random(0).randbytes(1000), "not an ONNX model"),
    ],
)
def test_other_files_are_refused(tmp_path, content, reason):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(FileError, match=reason):
        read_model(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(FileError, match="there is no file"):
        read_model(tmp_path / "net.onnx")
    with pytest.raises(FileError, match="cannot be read"):
        read_model(tmp_path)


def test_a_huge_file_is_refused(tmp_path, monkeypatch):
    path = save(make_conv_net(), tmp_path / "net.onnx")
    monkeypatch.setattr(model_file, "MOST_MODEL_BYTES", 100)
    with pytest.raises(FileError, match="larger than"):
        read_model(path)
    assert len(read_limited(path, 10**6)) > 100


def test_huge_shapes_are_refused(tmp_path):
    huge = make_conv_net(shape=("batch", 3, 10**6, 10**7))
    with pytest.raises(FileError, match=r"'x' has 3e\+13 elements, more than 1,000,000,000,000"):
        read_onnx_net(save(huge, tmp_path / "input.onnx"))
    weights = external("w", "w.bin", 2**40, 4)
    with pytest.raises(FileError, match=r"'w' has .* elements, more than"):
        read_onnx_net(save(make_linear(weights), tmp_path / "weight.onnx"))
    grown = [node("Tile", "x times", "t"), node("Relu", "t", "y")]
    model = make_model(grown, [integers("times", 1, 10**6, 10**6, 10**6)])
    with pytest.raises(FileError, match=r"\(Tile\) the result has"):
        read_onnx_net(save(model, tmp_path / "result.onnx"))


def test_huge_constants_are_not_computed(tmp_path):
    nodes = [
        node("ConstantOfShape", "size", "filled"),
        node("ReduceSum", "filled", "sum", keepdims=0),
        node("Add", "x sum", "y"),
    ]
    model = make_model(nodes, [integers("size", 10**11)])
    assert read_onnx_net(save(model, tmp_path / "net.onnx")).network.layers[0].kind == "elementwise"
    powers = [node("Pow", "big big", "p"), node("Reshape", "x p", "y")]
    model = make_model(powers, [integers("big", 10**9)])
    with pytest.raises(FileError, match="reads its shape"):
        read_onnx_net(save(model, tmp_path / "power.onnx"))


def test_weights_have_the_size_of_their_shape(tmp_path):
    short = weight("w", 4, 4)
    short.raw_data = short.raw_data[:-4]
    with pytest.raises(FileError, match="'w' has 15 elements, but its shape 4x4 has 16"):
        read_onnx_net(save(make_linear(short), tmp_path / "raw.onnx"))
    typed = helper.make_tensor("w", TensorProto.FLOAT, (2, 2), [0.0] * 4)
    typed.dims[0] = 4
    with pytest.raises(FileError, match="'w' has 4 elements, but its shape 4x2 has 8"):
        read_onnx_net(save(make_linear(typed), tmp_path / "typed.onnx"))
    negative = weight("w", 4, 4)
    negative.dims[0] = -4
    with pytest.raises(FileError, match="negative size"):
        read_onnx_net(save(make_linear(negative), tmp_path / "negative.onnx"))
    wrong_length = external("w", "w.bin", 4, 4, length=63)
    with pytest.raises(FileError, match="'w' has 63 bytes, but its shape needs 64"):
        read_onnx_net(save(make_linear(wrong_length), tmp_path / "length.onnx"))


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../secret.bin",
        "data/../../secret.bin",
        "C:\\secret.bin",
        "..\\secret.bin",
        "\\\\host\\share",
        "",
        "a\0b",
    ],
)
def test_weights_outside_of_the_folder_are_refused(tmp_path, opened_files, location):
    path = save(make_linear(external("w", location, 4, 4)), tmp_path / "net.onnx")
    with pytest.raises(FileError, match="outside of the model's folder"):
        read_onnx_net(path)
    touched = {name for name in opened_files if "secret" in name or "passwd" in name}
    assert not touched


def test_weights_in_other_files_are_never_opened(tmp_path, opened_files):
    folder = tmp_path / "model"
    folder.mkdir()
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(64))
    (folder / "link.bin").symlink_to(secret)
    for location in ("link.bin", "missing.bin", "data/w.bin"):
        path = save(make_linear(external("w", location, 4, 4)), folder / "net.onnx")
        opened_files.clear()
        network = read_onnx_net(path).network
        assert network.layers[0].sizes["cin"] == 4
        inside = [name for name in opened_files if name.startswith(str(tmp_path))]
        assert inside == [str(path)]


def test_constants_of_nodes_are_checked_too(tmp_path):
    constant = node("Constant", "", "w", value=external("", "/etc/passwd", 4, 4))
    del constant.input[:]
    model = make_model([constant, node("MatMul", "x w", "y")], shape=("batch", 4))
    with pytest.raises(FileError, match="outside"):
        read_onnx_net(save(model, tmp_path / "net.onnx"))


def test_cycles_are_refused(tmp_path):
    nodes = [node("Add", "x b", "a", name="first"), node("Relu", "a", "b"), node("Relu", "b", "y")]
    with pytest.raises(FileError, match=r"'first' \(Add\) reads 'b', which no earlier node"):
        read_onnx_net(save(make_model(nodes), tmp_path / "net.onnx"))


def test_names_are_unique(tmp_path):
    twice = [node("Relu", "x", "y"), node("Tanh", "x", "y")]
    with pytest.raises(FileError, match="two values are named 'y'"):
        read_onnx_net(save(make_model(twice), tmp_path / "result.onnx"))
    weights = [weight("w", 4, 4), weight("w", 4, 4)]
    model = make_model([node("MatMul", "x w", "y")], weights, ("batch", 4))
    with pytest.raises(FileError, match="two values are named 'w'"):
        read_onnx_net(save(model, tmp_path / "weight.onnx"))
    computed = [node("Relu", "x", "x")]
    with pytest.raises(FileError, match="a node computes the input 'x'"):
        read_onnx_net(save(make_model(computed, output="x"), tmp_path / "input.onnx"))


@pytest.mark.parametrize("depth", [10, 25])
def test_deep_subgraphs_are_refused(tmp_path, depth):
    graph = helper.make_graph(
        [node("Relu", "x", "y")],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    for _ in range(depth):
        outer = node("If", "c", "y", then_branch=graph)
        graph = helper.make_graph([outer], "g", [], list(graph.output))
    condition = helper.make_tensor("c", TensorProto.BOOL, (), [True])
    model = make_model([*graph.node], [condition])
    path = save(model, tmp_path / "net.onnx")
    if depth == 10:
        assert read_onnx_net(path).network.layers[0].sizes["fn"] == "relu"
    else:
        with pytest.raises(FileError, match="nested more than 20 deep"):
            read_onnx_net(path)


def test_control_characters_are_escaped(tmp_path):
    model = make_model(
        [node("Relu", "x", "a"), node("Add", "a \x1b[2J", "y", name="\x1b]0;hi\x07")]
    )
    with pytest.raises(FileError) as caught:
        read_onnx_net(save(model, tmp_path / "net.onnx"))
    assert str(caught.value).isprintable()
    assert "\\x1b" in str(caught.value)


def test_names_that_are_not_text_are_refused(tmp_path):
    content = make_conv_net().SerializeToString().replace(b"/conv/Conv", b"/con\xff/Conv")
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(FileError, match="a name in it is not text"):
        read_onnx_net(path)


def test_damaged_files_are_refused_in_one_line(tmp_path):
    rng = random.Random(5)
    content = make_conv_net().SerializeToString()
    path = tmp_path / "net.onnx"
    refused = 0
    for _ in range(300):
        path.write_bytes(damage_bytes(content, rng))
        assert find_defect(lambda: read_onnx_net(path)) is None
        try:
            read_onnx_net(path)
        except InputError:
            refused += 1
    assert refused > 50


def test_small_constants_are_decoded():
    for type_, numbers in (
        (TensorProto.INT64, (3, -1)),
        (TensorProto.FLOAT, (0.5, 2.0)),
        (TensorProto.FLOAT16, (0.5, 2.0)),
        (TensorProto.BOOL, (True, False)),
        (TensorProto.DOUBLE, (0.25, 1.0)),
    ):
        typed = helper.make_tensor("t", type_, (2,), numbers)
        raw = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(typed))
        assert decode_numbers(typed) == decode_numbers(raw) == numbers
    assert decode_numbers(weight("w", 100, 100)) is None
    assert decode_numbers(external("w", "w.bin", 2)) is None
