"""Repeated blocks of networks that are not buildable still run alone, with the same FLOPs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from joulecast.kinds import layer_work
from joulecast.records import Device, Setup
from joulecast.runtimes.torch.net_reader import read_net
from joulecast.runtimes.torch.runtime import TorchRuntime
from joulecast.variants import BLOCK, make_isolated_trial, split_blocks

TWO = Setup(batch=2, optimizer="adamw")
WIDTH, HEADS, ROW = 32, 4, 8


class RotaryAttention(nn.Module):
    """Decoder attention with rotary embeddings and shared key-value heads."""

    def __init__(self, kv_heads):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH // HEADS * kv_heads)
        self.value = nn.Linear(WIDTH, WIDTH // HEADS * kv_heads)
        self.out = nn.Linear(WIDTH, WIDTH)

    def rotate(self, x):
        x = x.view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)
        half = x.shape[-1] // 2
        return x * 0.9 + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * 0.1

    def forward(self, x):
        inner = self.norm(x)
        value = self.value(inner).view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)
        query, key = self.rotate(self.query(inner)), self.rotate(self.key(inner))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class WindowAttention(nn.Module):
    """Window attention with a learnt position bias, written with matrix products."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.bias = nn.Parameter(torch.randn(10, HEADS))
        self.register_buffer("positions", torch.arange(ROW * ROW // 4) % 10)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        windows = self.norm(x).reshape(-1, ROW // 2, WIDTH)
        mixed = self.mix(windows).reshape(*windows.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = mixed[0] * 0.3 @ mixed[1].transpose(-2, -1)
        bias = self.bias[self.positions].view(ROW // 2, ROW // 2, HEADS).permute(2, 0, 1)
        result = (scores + bias.contiguous().unsqueeze(0)).softmax(-1) @ mixed[2]
        return x + self.out(result.transpose(1, 2).reshape(windows.shape)).view(x.shape)


class PatchMerging(nn.Module):
    """Concatenates neighbours along the last axis, as between stages of a Swin Transformer."""

    def __init__(self):
        super().__init__()
        self.halve = nn.Linear(2 * WIDTH, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        pairs = torch.cat((x, x.flip(1)), dim=2)
        return x + self.again(F.gelu(self.halve(pairs)))


@pytest.mark.parametrize(
    "make", [lambda: RotaryAttention(2), lambda: RotaryAttention(4), WindowAttention, PatchMerging]
)
def test_repeated_block_runs_alone_with_the_same_flops(make):
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), make(), make(), nn.Linear(WIDTH, 5))
    network = read_net(net, torch.randn(2, ROW, WIDTH))
    blocks = [place.part for place in split_blocks(network) if place.part.role == BLOCK]
    assert len(blocks) == 2
    trial = make_isolated_trial(blocks[0], TWO)
    step = TorchRuntime("cpu", Device("here")).prepare(trial)
    inner = step.replicas[0].net
    again = read_net(inner, step.replicas[0].inputs)
    step.close()
    alone = sum(layer_work(layer, TWO).total.flops for layer in again.layers)
    assert alone == sum(layer_work(layer, TWO).total.flops for layer in blocks[0].layers)
