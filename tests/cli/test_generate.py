"""``joulecast generate``: what a prompt and each generated token cost."""

import pytest

from joulecast.features.profiles import load_profile
from joulecast.runtimes.installed import explain_runtime_difference

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
