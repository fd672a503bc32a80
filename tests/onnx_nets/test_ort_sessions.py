"""Sessions of ONNX Runtime: of models, of kernels alone, and in 8 bits."""

import logging
import os
from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime")

import numpy as np
import onnx

from joulecast.families import make_family
from joulecast.onnx_nets.ort_runtime import build_model
from joulecast.onnx_nets.ort_sessions import (
    find_block_size,
    is_quantised,
    list_integer_kernels,
    open_session,
    open_without_conversions,
    quantise_model,
)
from joulecast.operators import make_layer, make_op
from joulecast.records import Execution, Input, Network, Setup, Trial
from joulecast.runtimes import open_runtime

SETUP = Setup(batch=1, phase="inference", threads=1)
CHANNELS = 32
TAIL = (make_op("batch_norm"), make_op("elementwise", fn="relu"))
CONV = make_layer("conv2d", TAIL, cin=CHANNELS, cout=20, space=(6, 6), kernel=3, padding=1)


def make_alone(layer, copies=1):
    execution = Execution(copies=copies, upstream="random")
    network = Network((layer,), Input((CHANNELS, 6, 6)))
    return build_model(Trial(network, SETUP, execution))


def to_blocks(x, block):
    batch, channels, *space = x.shape
    x = x.reshape(batch, channels // block, block, *space)
    return np.ascontiguousarray(np.moveaxis(x, 2, -1)).reshape(batch, channels, *space)


def test_convolution_computes_the_same_on_blocks():
    model, inputs = make_alone(CONV)
    x = inputs["input_0"]
    (expected,) = open_session(model.SerializeToString(), SETUP).run(None, {"input_0": x})
    session = open_without_conversions(model, SETUP)
    (given,) = session.get_inputs()
    assert given.name != "input_0"
    block = find_block_size()
    (found,) = session.run(None, {given.name: to_blocks(x, block)})
    padded = -(-20 // block) * block
    assert found.shape == (1, padded, 6, 6)
    whole = np.zeros((1, padded, 6, 6), dtype="float32")
    whole[:, :20] = expected
    np.testing.assert_allclose(found, to_blocks(whole, block), atol=1e-5)


def test_copies_share_the_converted_input():
    session = open_without_conversions(make_alone(CONV, copies=3)[0], SETUP)
    assert len(session.get_inputs()) == 1
    assert len(session.get_outputs()) == 3


def test_other_layers_are_run_as_they_are():
    layer = make_layer("elementwise", fn="tanh", shape=(CHANNELS, 6, 6))
    session = open_without_conversions(make_alone(layer)[0], SETUP)
    assert [one.name for one in session.get_inputs()] == ["input_0"]


def test_convolution_in_8_bits_reads_and_writes_integers():
    model, inputs = make_alone(CONV)
    session = open_without_conversions(quantise_model(model, inputs, "int8"), SETUP)
    (given,), (out,) = session.get_inputs(), session.get_outputs()
    assert (given.type, given.shape) == ("tensor(uint8)", [1, 6, 6, CHANNELS])
    assert (out.type, out.shape) == ("tensor(uint8)", [1, 6, 6, 20])


def test_layers_in_8_bits_run_alone():
    runtime = open_runtime("onnx")
    for layer in (CONV, make_layer("layer_norm", shape=(CHANNELS, 6, 6))):
        network = Network((layer,), Input((CHANNELS, 6, 6)))
        for precision in ("int8", "int8_dynamic"):
            setup = replace(SETUP, precision=precision)
            execution = Execution(copies=2, upstream="random")
            runtime.prepare(Trial(network, setup, execution)).close()


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_threads_are_those_of_the_setup(threads):
    model = make_alone(CONV)[0].SerializeToString()
    session = open_session(model, Setup(threads=threads))
    options = session.get_session_options()
    expected = threads or len(os.sched_getaffinity(0))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (expected, 1)
    assert session.get_providers() == ["CPUExecutionProvider"]


CONVOLUTIONS = "resnet18:8,1,1,1,1"


def make_model(name):
    return build_model(Trial(make_family(name), replace(SETUP, batch=2)))


def run(model, inputs, optimised=None):
    session = open_session(model.SerializeToString(), Setup(threads=1), optimised)
    return session.run(None, dict(inputs))[0]


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
def test_layers_run_with_integers_and_give_nearly_the_same(name, precision, kernel, tmp_path):
    model, inputs = make_model(name)
    expected = run(model, inputs)
    quantised = quantise_model(model, inputs, precision)
    found = run(quantised, inputs, tmp_path / "optimised.onnx")
    assert kernel in list_integer_kernels(onnx.load(tmp_path / "optimised.onnx"))
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert 0 < error < 0.15


def test_norms_are_folded_before_convolutions_are_quantised(tmp_path):
    # They would otherwise run in fp32, between conversions.
    model, inputs = make_model(CONVOLUTIONS)
    quantised = quantise_model(model, inputs, "int8")
    assert "BatchNormalization" in {node.op_type for node in model.graph.node}
    assert "BatchNormalization" not in {node.op_type for node in quantised.graph.node}


def test_model_in_fp32_has_no_integer_kernels(tmp_path):
    model, inputs = make_model("lenet5")
    run(model, inputs, tmp_path / "optimised.onnx")
    assert list_integer_kernels(onnx.load(tmp_path / "optimised.onnx")) == []
    assert not is_quantised(model)
    assert is_quantised(quantise_model(model, inputs, "int8"))


def test_advice_of_the_quantiser_is_not_logged(caplog):
    quantise_model(*make_model("lenet5"), "int8")
    assert caplog.records == []
    logging.getLogger().warning("shown")
    assert [one.message for one in caplog.records] == ["shown"]
