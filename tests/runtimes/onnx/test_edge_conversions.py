"""Kernels alone in the formats that they have inside a network."""

from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime")

import numpy as np

from joulecast.kinds import make_layer, make_op
from joulecast.records import Execution, Input, Network, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.runtimes.onnx.runtime import build_model
from joulecast.runtimes.onnx.sessions import (
    find_block_size,
    open_session,
    open_without_conversions,
    quantise_model,
)

SETUP = Setup(batch=1, phase="inference", threads=1)
CHANNELS = 32
TAIL = (make_op("batch_norm"), make_op("elementwise", fn="relu"))
CONV = make_layer("conv2d", TAIL, cin=CHANNELS, cout=20, space=(6, 6), kernel=3, padding=1)


def make_model(layer, copies=1):
    execution = Execution(copies=copies, upstream="random")
    network = Network((layer,), Input((CHANNELS, 6, 6)))
    return build_model(Trial(network, SETUP, execution))


def to_blocks(x, block):
    batch, channels, *space = x.shape
    x = x.reshape(batch, channels // block, block, *space)
    return np.ascontiguousarray(np.moveaxis(x, 2, -1)).reshape(batch, channels, *space)


def test_convolution_computes_the_same_on_blocks():
    model, inputs = make_model(CONV)
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
    session = open_without_conversions(make_model(CONV, copies=3)[0], SETUP)
    assert len(session.get_inputs()) == 1
    assert len(session.get_outputs()) == 3


def test_other_layers_are_run_as_they_are():
    layer = make_layer("elementwise", fn="tanh", shape=(CHANNELS, 6, 6))
    session = open_without_conversions(make_model(layer)[0], SETUP)
    assert [one.name for one in session.get_inputs()] == ["input_0"]


def test_convolution_in_8_bits_reads_and_writes_integers():
    model, inputs = make_model(CONV)
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
