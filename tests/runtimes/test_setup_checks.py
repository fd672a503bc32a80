"""Setups that a framework cannot run are refused by one line that says what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.errors import InputError
from joulecast.kinds import make_layer
from joulecast.records import INT8_PRECISIONS, Network, Setup
from joulecast.runtimes.setup_checks import (
    refuse_cuda_graphs,
    refuse_int8,
    refuse_processor,
    refuse_torch_options,
)

INFERENCE = Setup(batch=1, phase="inference")


@pytest.mark.parametrize("precision", INT8_PRECISIONS)
def test_int8_is_refused_with_the_runtime_that_has_it(precision: str) -> None:
    with pytest.raises(InputError, match=rf"MNN does not run {precision} .* --on onnx:cpu"):
        refuse_int8(replace(INFERENCE, precision=precision), "MNN")


def test_processor_and_graphs_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="PyTorch has no processor 'NPU'"):
        refuse_processor(replace(INFERENCE, processor="NPU"), "PyTorch")
    with pytest.raises(InputError, match="MNN has no CUDA graphs: leave --cuda-graphs out"):
        refuse_cuda_graphs(replace(INFERENCE, cuda_graphs=True), "MNN")


def test_usual_setups_pass() -> None:
    for refuse in (refuse_int8, refuse_processor, refuse_cuda_graphs):
        refuse(Setup(), "PyTorch")
        refuse(replace(INFERENCE, precision="bf16"), "PyTorch")


@pytest.mark.parametrize(
    ("setup", "recomputed", "option"),
    [
        (Setup(compiled=True), False, "--compile"),
        (Setup(accumulate=2), False, "--accumulate"),
        (Setup(), True, "--checkpoint"),
    ],
)
def test_options_of_pytorch_are_refused(setup: Setup, recomputed: bool, option: str) -> None:
    layer = replace(make_layer("linear", cin=2, cout=2), recomputed=recomputed)
    with pytest.raises(InputError, match=f"MNN .*: leave {option} out"):
        refuse_torch_options(setup, Network((layer,)), "MNN")
    refuse_torch_options(Setup(), Network((replace(layer, recomputed=False),)), "MNN")
