"""Text generation: what a prompt and each generated token cost."""

from dataclasses import replace

import numpy as np
import pytest

import joulecast
from joulecast.estimators import fit_profile
from joulecast.families import make_family
from joulecast.features.generate import (
    READING_TOKENS,
    estimate_generation,
    make_decode_network,
    make_prefill_network,
)
from joulecast.features.profiles import load_profile
from joulecast.records import Setup
from joulecast.runtimes import explain_runtime_difference
from joulecast.system.errors import ArgumentError

MODULE = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attention = nn.Embedding(100, 64), Attention()
        self.head = nn.Linear(64, 100)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.attention(x))

def make():
    return Model(), torch.zeros(2, 16, dtype=torch.long)
"""


DEVICE = ("--device", "nvidia-h200")


@pytest.fixture
def model(shell):
    (shell.folder / "model.py").write_text(MODULE)
    return "model.py:make"


def test_prompt_and_tokens_are_estimated_apart(shell, model):
    lengths = ("--prompt-tokens", "300", "--new-tokens", "50")
    text = shell("generate", model, *lengths, "--cuda-graphs", *DEVICE).stdout
    assert "A prompt of 300 tokens and 50 generated ones take" in text
    assert "per 1,000 requests" in text
    assert "Token 350" in text
    assert "Provenance: measured by a meter; the meter covers gpu." in text
    assert "Sampling and tokenisation are not included." in text
    text = shell("generate", model, "--batch", "8", *DEVICE).stdout
    assert "for 8 sequences at once" in text


def test_json_has_units_in_its_names(shell, model):
    data = shell.json("generate", model, "--batch", "8", *DEVICE)
    assert data["setup"]["phase"] == "inference" and data["setup"]["precision"] == "bf16"
    total_j = data["request_j"]
    assert data["wh_per_1000_requests"] == pytest.approx(1000 * total_j / 3600)
    prompt_j = data["prompt_tokens"] * data["prompt_token_j"]
    assert prompt_j < total_j < prompt_j + 130 * data["decode"][-1]["token_j"]
    low_j, high_j = data["request_interval_j"]
    assert low_j < total_j < high_j


def test_another_version_of_the_framework_is_noted(shell, model):
    difference = explain_runtime_difference(load_profile("nvidia-h200").runtime)
    assert difference in shell.json("generate", model, *DEVICE)["notes"]


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("cnn5", "does not read tokens"),
        ("net.onnx", "fixed number of tokens"),
        ("missing.py:make", "no file missing.py"),
        ("nosuch", "no language model 'nosuch'"),
    ],
)
def test_other_nets_are_refused_in_one_line(shell, net, message):
    assert message in shell.fails("generate", net, *DEVICE)


@pytest.mark.parametrize("tokens", [0, -3, 10**9])
def test_impossible_lengths_are_refused(tokens):
    with pytest.raises(ArgumentError, match=str(tokens)):
        joulecast.generate("transformer", prompt_tokens=tokens)


NETWORK = make_family("transformer", READING_TOKENS[:1])
SETUP = Setup(4, phase="inference", precision="bf16", cuda_graphs=True)


@pytest.fixture(scope="module")
def profile():
    return fit_profile(load_profile("nvidia-h200"))


def test_request_is_a_prompt_and_all_its_tokens(profile):
    found = estimate_generation(profile, NETWORK, SETUP, 60, 12)
    networks = [make_prefill_network(NETWORK, 60)]
    networks += [make_decode_network(NETWORK, 60 + number) for number in range(1, 13)]
    single = profile.estimate(networks, SETUP)
    assert found.request_j == pytest.approx(single.energy_j.sum() / 4, rel=0.01)
    assert found.prompt_token_j == pytest.approx(single[0].energy_j / 4 / 60)
    assert found.decode[0].token_j == pytest.approx(single[1].energy_j / 4)
    assert found.decode[-1].context == 72
    decode_s = sum(one.duration_s for one in single[1:])
    assert found.request_s == pytest.approx(single[0].duration_s + decode_s, rel=0.01)
    assert found.tokens_per_s == pytest.approx(4 * 12 / decode_s, rel=0.01)


def test_errors_of_tokens_do_not_average_out(profile):
    """They are estimated from the same layers, so that they err together."""
    found = estimate_generation(profile, NETWORK, SETUP, 60, 500)
    low_j, high_j = found.request_interval_j
    token_low_j, token_high_j = found.decode[0].token_interval_j
    width = np.log(high_j / low_j) / np.log(token_high_j / token_low_j)
    assert 0.7 < width < 1.1


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_waiting_for_the_host_is_warned_of(profile, cuda_graphs):
    setup = replace(SETUP, batch=1, cuda_graphs=cuda_graphs)
    notes = estimate_generation(profile, NETWORK, setup, 60, 2).notes
    assert any("wait for the host" in note for note in notes) == (not cuda_graphs)
