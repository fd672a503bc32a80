"""ONNX files of others: damaged and hostile ones are refused in one line, and no file is opened."""

import os
import random
import sys
from itertools import pairwise

import pytest
from onnx import TensorProto

from benchmarks.robustness.hostile_inputs import damage_bytes, find_defect
from joulecast.onnx_nets import model_file, net_file, network
from joulecast.onnx_nets.net_file import read_onnx_content, read_onnx_net
from joulecast.onnx_nets.network import read_network
from joulecast.records import Network
from joulecast.system.errors import FileError, InputError, NetError
from onnx_models import external, integers, make_conv_net, make_model, node, save, weight

CONV_NET = make_conv_net().SerializeToString()


def read(model, sample=None):
    return read_network(model.SerializeToString(), "net", "net.onnx", sample)


def make_linear(tensor):
    return make_model([node("MatMul", "x w", "y")], [tensor], ("batch", 4))


def make_weight(dims, **elements):
    """Return a weight whose elements need not fit to its shape."""
    return TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, **elements)


def make_constant_elsewhere():
    constant = node("Constant", "", "w", value=external("", "/etc/passwd", 4, 4))
    del constant.input[:]
    return make_model([constant, node("MatMul", "x w", "y")], shape=("batch", 4))


OPEN = ("batch", 3, "height", "width")
GROWN = [node("Tile", "x times", "t"), node("Relu", "t", "y")]
CYCLE = [node("Add", "x b", "a", name="first"), node("Relu", "a", "b"), node("Relu", "b", "y")]
OTHER_INPUT = [node("MatMul", "x w", "m"), node("Add", "m mask", "y")]
# Only arithmetic is computed when a file is read: neither chance, nor windows as large as a file
# says.
CHANCE = node("RandomUniformLike", "w", "n", low=4.0, high=4.5)
POOLED = node("AveragePool", "w", "n", kernel_shape=[9], pads=[4, 4], count_include_pad=1)
REFUSED = {
    "huge input": (make_conv_net(shape=("batch", 3, 10**6, 10**7)), "'x' has 3e+13 elements"),
    "huge weight": (make_linear(external("w", "w.bin", 2**40, 4)), "'w' has 4.4e+12 elements"),
    "huge result": (make_model(GROWN, [integers("times", 1, 10**6, 10**6, 10**6)]), "(Tile)"),
    "overflowing shape": (
        make_model(
            [node("Pow", "big big", "p"), node("Reshape", "x p", "y")], [integers("big", 10**9)]
        ),
        "(Reshape) reshapes 13x3x8x8",
    ),
    "computed shape": (
        make_model([node("Reshape", "x s", "y")], more_inputs=[("s", (2,))]),
        "(Reshape)",
    ),
    **{
        f"shape by {made.op_type}": (
            make_model(
                [
                    made, node("Cast", "n", "c", to=TensorProto.INT64),
                    node("Reshape", "c one", "s"), node("Reshape", "x s", "y"),
                ],
                [weight("w", 1, 1, 1), integers("one", 1)],
            ),
            "(Reshape) reads its shape from a value",
        )
        for made in (CHANCE, POOLED)
    },
    "short weight": (make_linear(make_weight((4, 4), raw_data=bytes(60))), "does not have"),
    "typed weight": (make_linear(make_weight((4, 2), float_data=(0, 0))), "4x2"),
    "negative size": (make_linear(make_weight((-4, 4))), "negative size"),
    "wrong length": (make_linear(external("w", "w.bin", 4, 4, length=63)), "'w' has 63 bytes"),
    "constant elsewhere": (make_constant_elsewhere(), "outside of the model's folder"),
    "cycle": (make_model(CYCLE), "'first' (Add) reads 'b', which no earlier node"),
    "two of a name": (make_model([node("Relu", "x", "y")] * 2), "two values are named 'y'"),
    "computed input": (make_model([node("Relu", "x", "x")], output="x"), "computes the input 'x'"),
    "no input": (make_model([], [weight("x", 2)], output="x"), "it has no inputs"),
    "constant output": (make_model([node("Neg", "w", "y")], [weight("w", 3)]), "do not depend"),
    "open sizes": (make_conv_net(shape=OPEN), "[batch, 3, height, width]"),
    "unknown operators": (
        make_model([node("Wobble", "x", "y", domain="com.acme")]),
        "com.acme::Wobble (1)",
    ),
    "views only": (make_model([node("Flatten", "x", "y")]), "computes nothing"),
    "open size elsewhere": (
        make_model(
            OTHER_INPUT, [weight("w", 4, 4)], (1, 6, 4), more_inputs=[("mask", (1, "past", 4))]
        ),
        "nothing says what 'past' is",
    ),
    **{
        f"misfit {made.op_type} {number}": (make_model([made], used, shape), f"{made.op_type})")
        for number, (shape, made, used) in enumerate((
            ((2, 5, 8, 8), node("Conv", "x w", "y"), [weight("w", 4, 6, 3, 2)]),
            ((2, 6, 2, 2), node("Conv", "x w", "y"), [weight("w", 4, 6, 3, 2)]),
            ((2, 5), node("MatMul", "x m", "y"), [weight("m", 12, 7)]),
            ((2, 5), node("FusedMatMul", "x x", "y", domain="com.microsoft"), []),
            ((2, 5), node("Reshape", "x s", "y"), [integers("s", 3)]),
            ((2, 5), node("Transpose", "x", "y", perm=[0, 0]), []),
            ((2, 5), node("Concat", "x x", "y", axis=7), []),
            ((2, 5), node("Split", "x s", "y b", axis=1), [integers("s", 3)]),
            ((2, 5), node("Conv", "x", "y"), []),
            ((2, 5), node("Add", "x m", "y"), [weight("m", 12, 7)]),
            ((2, 5), node("Slice", "x a b c s", "y"), [integers(one, 0) for one in "abcs"]),
        ))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_that_cannot_be_read_is_refused_with_its_reason(name):
    model, reason = REFUSED[name]
    with pytest.raises((FileError, NetError)) as caught:
        read(model)
    message = str(caught.value)
    assert message.startswith("net.onnx: ")
    assert reason in message
    assert message.isprintable()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b'{"format": "joulecast-network"}',
        b"\x08\x09",
        random.Random(0).randbytes(1000),
        *(CONV_NET[:size] for size in range(1, len(CONV_NET), 31)),
    ],
)
def test_other_and_truncated_files_are_refused(content):
    with pytest.raises(FileError, match=r"net\.onnx"):
        read_network(content, "net", "net.onnx")


def test_damaged_files_are_refused_in_one_line():
    rng, refused = random.Random(5), []

    def read_damaged(content):
        try:
            read_network(content, "net", "net.onnx")
        except InputError:
            refused.append(content)
            raise

    for _ in range(300):
        content = damage_bytes(CONV_NET, rng)
        assert find_defect(lambda content=content: read_damaged(content)) is None
    assert len(refused) > 50


def test_names_from_the_file_are_escaped_or_refused():
    nodes = [node("Relu", "x", "a"), node("Add", "a \x1b[2J", "y", name="\x1b]0;hi\x07")]
    with pytest.raises(FileError) as caught:
        read(make_model(nodes))
    assert str(caught.value).isprintable()
    assert "\\x1b" in str(caught.value)
    with pytest.raises(FileError, match="a name in it is not text"):
        read_network(CONV_NET.replace(b"/conv/Conv", b"/con\xff/Conv"), "net", "net.onnx")


def test_sizes_that_the_file_fixes_cannot_be_changed():
    assert read(make_conv_net(), (3, 8, 8)).network.input.shape == (3, 8, 8)
    with pytest.raises(NetError, match="samples of 3x16x16 do not fit: leave it out"):
        read(make_conv_net(), (3, 16, 16))
    with pytest.raises(NetError, match="do not fit: give another"):
        read(make_conv_net(shape=OPEN), (4, 8, 8))
    assert read(make_conv_net(shape=OPEN), (3, 16, 16)).network.input.shape == (3, 16, 16)


def test_huge_constants_are_not_computed():
    nodes = [
        node("ConstantOfShape", "size", "filled"),
        node("ReduceSum", "filled", "sum", keepdims=0),
        node("Add", "x sum", "y"),
    ]
    network = read(make_model(nodes, [integers("size", 10**11)])).network
    assert network.layers[0].kind == "elementwise"


def test_long_graphs_are_read_or_refused(monkeypatch):
    names = ["x", *(f"v{index}" for index in range(2500)), "y"]
    chain = make_model([node("Relu", a, b) for a, b in pairwise(names)])
    found = read(chain).network
    assert sum(1 + len(layer.tail) for layer in found.layers) == 2501
    assert Network.from_dict(found.to_dict()) == found
    monkeypatch.setattr(network, "MOST_LAYERS", 20)
    with pytest.raises(FileError, match="layers, more than 20"):
        read(chain)
    monkeypatch.setattr(model_file, "MOST_NODES", 2000)
    with pytest.raises(FileError, match="it has 2,501 nodes, more than 2,000"):
        read(chain)


# -- files and the worker ---------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "location",
    ["/etc/passwd", "../s.bin", "a/../../s.bin", "C:\\s.bin", "..\\s.bin", "\\\\h\\s", "", "a\0b"],
)  # fmt: skip
def test_weights_outside_of_the_folder_are_refused(location):
    with pytest.raises(FileError, match="outside of the model's folder"):
        read(make_linear(external("w", location, 4, 4)))


def test_weights_in_other_files_are_never_opened(tmp_path, opened_files):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    for location in ("link.bin", "missing.bin", "data/w.bin"):
        path = save(make_linear(external("w", location, 4, 4)), folder / "net.onnx")
        opened_files.clear()
        # Here, where it would show, and in the worker, which is given the content alone.
        assert read_onnx_net(path).network == read_network(path.read_bytes(), "net", "").network
        inside = [name for name in opened_files if name.startswith(str(tmp_path))]
        assert {*inside} == {str(path)}


def test_files_that_are_too_large_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(net_file, "MOST_MODEL_BYTES", 100)
    with pytest.raises(FileError, match="larger than"):
        read_onnx_net(save(make_conv_net(), tmp_path / "net.onnx"))


def test_the_worker_reads_and_refuses_what_is_read_and_refused_here(tmp_path):
    path = save(make_conv_net(), tmp_path / "mine.onnx")
    expected = read_network(CONV_NET, "mine", str(path), batch=4)
    assert read_onnx_net(path, batch=4) == expected
    assert read_onnx_net(path, (3, 8, 8), usual_batch=7).batch == 7
    with pytest.raises(NetError, match=r"mine\.onnx: its input 'x' is \[batch, 3, 8, 8\]"):
        read_onnx_net(path, (3, 16, 16))
    with pytest.raises(FileError, match="upload is truncated or not an ONNX model"):
        read_onnx_content(CONV_NET[:100], "upload")


@pytest.mark.parametrize("command", ["exec sleep 60", "exit 1", "kill -SEGV $$", "echo {"])
def test_a_reader_that_hangs_or_dies_is_one_line(monkeypatch, command):
    monkeypatch.setattr(net_file, "LIMIT_S", 0.5)
    monkeypatch.setattr(net_file, "_COMMAND", ["sh", "-c", command])
    with pytest.raises(FileError, match=r"net\.onnx cannot be read: the reader crashed"):
        read_onnx_content(CONV_NET, "net.onnx")
