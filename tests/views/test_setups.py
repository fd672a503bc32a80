"""Setups in words, and as options that give the same setup again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.records import Setup
from joulecast.views.words import (
    begin_sentence,
    describe_setup,
    explain_not_included,
    list_setup_options,
)

INFERENCE = Setup(batch=1, phase="inference")


@pytest.mark.parametrize(
    ("setup", "words", "options"),
    [
        (Setup(), "batch 32, sgd, fp32", "--batch 32"),
        (
            Setup(8, loss="mse", optimizer="adam"),
            "batch 8, adam, fp32, mse loss",
            "--batch 8 --optimizer adam --loss mse",
        ),
        (INFERENCE, "batch 1, inference, fp32", "--batch 1 --inference"),
        # Inference has no loss, whatever the setup says.
        (replace(INFERENCE, loss="own"), "batch 1, inference, fp32", "--batch 1 --inference"),
        (
            replace(INFERENCE, threads=2, processor="NPU", cuda_graphs=True, precision="int8"),
            "batch 1, inference, int8, 2 threads, NPU, CUDA graphs",
            "--batch 1 --precision int8 --threads 2 --processor NPU --cuda-graphs --inference",
        ),
    ],
)
def test_setup_in_words_and_options(setup: Setup, words: str, options: str) -> None:
    assert describe_setup(setup) == words
    assert list_setup_options(setup) == options


def test_sentences_about_inference_have_no_words_of_training() -> None:
    assert begin_sentence(Setup()) == "A step"
    assert begin_sentence(INFERENCE) == "An inference"
    assert begin_sentence(replace(INFERENCE, batch=8)) == "An inference of 8 samples"
    assert "checkpoints" not in explain_not_included(INFERENCE)
