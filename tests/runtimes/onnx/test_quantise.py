"""Models in 8 bits: their integer kernels, and how far their results are from fp32."""

import logging

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from joulecast.families import make_family
from joulecast.records import Setup, Trial
from joulecast.runtimes.onnx.runtime import build_model
from joulecast.runtimes.onnx.sessions import (
    is_quantised,
    list_integer_kernels,
    open_session,
    quantise_model,
)

CONVOLUTIONS = "resnet18:8,1,1,1,1"


def make_model(name):
    return build_model(Trial(make_family(name), Setup(batch=2, phase="inference", threads=1)))


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
    assert kernel in list_integer_kernels(tmp_path / "optimised.onnx")
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
    assert list_integer_kernels(tmp_path / "optimised.onnx") == []
    assert not is_quantised(model)
    assert is_quantised(quantise_model(model, inputs, "int8"))


def test_advice_of_the_quantiser_is_not_logged(caplog):
    quantise_model(*make_model("lenet5"), "int8")
    assert caplog.records == []
    logging.getLogger().warning("shown")
    assert [one.message for one in caplog.records] == ["shown"]
