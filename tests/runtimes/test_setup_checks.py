"""Setups that a framework cannot run are refused by one line that says what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.errors import InputError
from joulecast.records import INT8_PRECISIONS, Setup
from joulecast.runtimes.setup_checks import refuse_cuda_graphs, refuse_int8, refuse_processor

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
